#include "services/front/http/http_tls.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

namespace ete::front {
namespace {

namespace ssl = boost::asio::ssl;

constexpr std::chrono::milliseconds kLookInterval{500};
constexpr unsigned char kSessionContext[] = "ete-front";

std::string stamp_of(const std::string& path) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {} {} {}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

}  // namespace

HttpTls::HttpTls(service::TlsFiles files)
    : files_(std::move(files)),
      seen_(stamps()),
      looked_(std::chrono::steady_clock::now()),
      context_(make()) {}

HttpTls::Stamps HttpTls::stamps() const {
  return {stamp_of(files_.certificate), stamp_of(files_.key), stamp_of(files_.authority)};
}

std::shared_ptr<ssl::context> HttpTls::make() const {
  service::check_tls_files(files_);
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  context->use_certificate_chain_file(files_.certificate);
  context->use_private_key_file(files_.key, ssl::context::pem);
  if (!files_.authority.empty()) {
    context->load_verify_file(files_.authority);
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  SSL_CTX_set_session_id_context(context->native_handle(), kSessionContext, sizeof(kSessionContext) - 1);
  return context;
}

std::shared_ptr<ssl::context> HttpTls::context() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookInterval) return context_;
  looked_ = now;
  const Stamps stamps = this->stamps();
  if (stamps == seen_) return context_;
  try {
    context_ = make();
    spdlog::info("HTTP: the TLS files were read again");
  } catch (const std::exception& error) {
    spdlog::error("HTTP: {}; the TLS files stay as they were", error.what());
  }
  seen_ = stamps;
  return context_;
}

}  // namespace ete::front
