#include "services/common/tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <stdexcept>

namespace ete::service {
namespace {

constexpr unsigned kRefreshSeconds = 1;

using Provider = grpc::experimental::FileWatcherCertificateProvider;

// The newest of OpenSSL's errors; the others go.
[[noreturn]] void refuse(const std::string& file, const std::string& expected) {
  const unsigned long error = ERR_peek_last_error();
  const char* reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  ERR_clear_error();
  throw std::runtime_error(file + ": " + (reason == nullptr ? "cannot be used" : reason) + "; expected " +
                           expected);
}

}  // namespace

void check_tls_files(const TlsFiles& files) {
  const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) throw std::runtime_error("OpenSSL makes no TLS context");
  if (!files.certificate.empty()) {
    if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
      refuse(files.certificate, "certificates in PEM, the server's own first");
    }
    if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
      refuse(files.key, "the private key of " + files.certificate + " in PEM");
    }
  }
  if (!files.authority.empty() &&
      SSL_CTX_load_verify_locations(context.get(), files.authority.c_str(), nullptr) != 1) {
    refuse(files.authority, "certificates of authorities in PEM");
  }
}

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files) {
  if (files.certificate.empty()) return grpc::InsecureServerCredentials();
  check_tls_files(files);
  const auto provider =
      files.authority.empty()
          ? std::make_shared<Provider>(files.key, files.certificate, kRefreshSeconds)
          : std::make_shared<Provider>(files.key, files.certificate, files.authority, kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(provider);
  options.watch_identity_key_cert_pairs();
  if (!files.authority.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files) {
  if (files.authority.empty()) return grpc::InsecureChannelCredentials();
  check_tls_files(files);
  const auto provider =
      files.certificate.empty()
          ? std::make_shared<Provider>(files.authority, kRefreshSeconds)
          : std::make_shared<Provider>(files.key, files.certificate, files.authority, kRefreshSeconds);
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider);
  options.watch_root_certs();
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace ete::service
