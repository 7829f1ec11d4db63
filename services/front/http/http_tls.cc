#include "services/front/http/http_tls.h"

#include <openssl/ssl.h>

#include <utility>

namespace ete::front {
namespace {

namespace ssl = boost::asio::ssl;

constexpr unsigned char kSessionContext[] = "ete-front";

std::shared_ptr<ssl::context> make_context(const service::TlsContents& contents) {
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  context->set_options(ssl::context::default_workarounds | ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  context->use_certificate_chain(boost::asio::buffer(contents.certificate));
  context->use_private_key(boost::asio::buffer(contents.key), ssl::context::pem);
  if (!contents.authority.empty()) {
    context->add_certificate_authority(boost::asio::buffer(contents.authority));
    context->set_verify_mode(ssl::verify_peer | ssl::verify_fail_if_no_peer_cert);
  }
  SSL_CTX_set_session_id_context(context->native_handle(), kSessionContext, sizeof(kSessionContext) - 1);
  return context;
}

}  // namespace

HttpTls::HttpTls(service::TlsFiles files)
    : reader_(std::move(files), "HTTP"), made_of_(reader_.contents()), context_(make_context(*made_of_)) {}

std::shared_ptr<ssl::context> HttpTls::context() {
  const std::lock_guard lock(mutex_);
  auto contents = reader_.contents();
  if (contents != made_of_) {
    context_ = make_context(*contents);
    made_of_ = std::move(contents);
  }
  return context_;
}

}  // namespace ete::front
