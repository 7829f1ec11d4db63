#include "services/common/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace ete::service {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

// The newest of OpenSSL's errors; the others go.
[[noreturn]] void refuse(const std::string& file, const std::string& expected) {
  const unsigned long error = ERR_peek_last_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  throw std::runtime_error(file + ": " + (reason == nullptr ? "cannot be used" : reason) + "; expected " +
                           expected);
}

std::string read(const std::string& path, const std::string& expected) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::runtime_error(path + ": " + std::strerror(errno) + "; expected " + expected);
  return text;
}

Bio memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

// Instead of asking at the terminal.
int no_password(char*, int, int, void*) { return -1; }

Certificate next_certificate(const Bio& bio) {
  return {PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr), X509_free};
}

// Calls use(certificate) for each; false: there is none, one is not PEM or is not taken.
template <typename Use>
bool each_certificate(const std::string& text, const Use& use) {
  const Bio bio = memory(text);
  bool any = false;
  while (const Certificate certificate = next_certificate(bio)) {
    if (!use(certificate.get())) return false;
    any = true;
  }
  if (!any || ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) return false;
  ERR_clear_error();
  return true;
}

void check_pair(SSL_CTX* context, const TlsFiles& files, const TlsContents& contents) {
  bool first = true;
  const auto add = [&](X509* certificate) {
    const bool own = std::exchange(first, false);
    return (own ? SSL_CTX_use_certificate(context, certificate)
                : SSL_CTX_add1_chain_cert(context, certificate)) == 1;
  };
  if (!each_certificate(contents.certificate, add)) {
    refuse(files.certificate, "certificates in PEM, the server's own first");
  }
  const Key key(PEM_read_bio_PrivateKey(memory(contents.key).get(), nullptr, no_password, nullptr),
                EVP_PKEY_free);
  if (key == nullptr || SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    refuse(files.key, "the private key of " + files.certificate + " in PEM");
  }
}

std::string stamp_of(const std::string& path) {
  struct stat info {};
  if (path.empty() || stat(path.c_str(), &info) != 0) return "";
  return fmt::format("{} {} {} {}.{}", info.st_dev, info.st_ino, info.st_size, info.st_mtim.tv_sec,
                     info.st_mtim.tv_nsec);
}

}  // namespace

TlsContents read_tls_files(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) throw std::runtime_error("OpenSSL makes no TLS context");
  ERR_clear_error();
  TlsContents contents;
  if (!files.certificate.empty()) {
    contents.certificate = read(files.certificate, "certificates in PEM");
    contents.key = read(files.key, "a private key in PEM");
    check_pair(context.get(), files, contents);
  }
  if (!files.authority.empty()) {
    contents.authority = read(files.authority, "certificates in PEM");
    X509_STORE* store = SSL_CTX_get_cert_store(context.get());
    const auto add = [&](X509* certificate) { return X509_STORE_add_cert(store, certificate) == 1; };
    if (!each_certificate(contents.authority, add)) {
      refuse(files.authority, "certificates of authorities in PEM");
    }
  }
  return contents;
}

TlsReader::TlsReader(TlsFiles files, std::string user)
    : files_(std::move(files)),
      user_(std::move(user)),
      seen_(stamps()),
      looked_(std::chrono::steady_clock::now()),
      contents_(std::make_shared<const TlsContents>(read_tls_files(files_))) {}

TlsReader::Stamps TlsReader::stamps() const {
  return {stamp_of(files_.certificate), stamp_of(files_.key), stamp_of(files_.authority)};
}

std::shared_ptr<const TlsContents> TlsReader::contents() {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookInterval) return contents_;
  looked_ = now;
  // Taken before the files are read: one that is replaced meanwhile is read again next time.
  const Stamps stamps = this->stamps();
  if (stamps == seen_) return contents_;
  seen_ = stamps;
  try {
    contents_ = std::make_shared<const TlsContents>(read_tls_files(files_));
    spdlog::info("{}: the TLS files were read again", user_);
  } catch (const std::exception& error) {
    spdlog::error("{}: {}; the TLS files stay as they were", user_, error.what());
  }
  return contents_;
}

}  // namespace ete::service
