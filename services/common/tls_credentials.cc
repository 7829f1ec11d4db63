#include "services/common/tls_credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ete::service {
namespace {

// gRPC's watcher of files hands on whatever they hold, and a server whose certificate cannot be used then
// takes no connection. gRPC's C interface asks before each handshake instead, and C++ has no wrapper of that.
class WatchedCredentials final : public grpc::ServerCredentials {
 public:
  explicit WatchedCredentials(const TlsFiles& files) : reader_(files, "gRPC") {
    const auto request = files.authority.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                 : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    const auto fetch = [](void* self, grpc_ssl_server_certificate_config** config) {
      return static_cast<WatchedCredentials*>(self)->fetch(config);
    };
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch, this));
  }
  ~WatchedCredentials() override { grpc_server_credentials_release(credentials_); }
  WatchedCredentials(const WatchedCredentials&) = delete;
  WatchedCredentials& operator=(const WatchedCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    throw std::logic_error("these credentials take no processor of metadata");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_ssl_certificate_config_reload_status fetch(grpc_ssl_server_certificate_config** config) {
    const std::lock_guard lock(mutex_);
    auto contents = reader_.contents();
    if (contents == given_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{contents->key.c_str(), contents->certificate.c_str()};
    // gRPC demands authorities even where clients show nothing that they would be asked for.
    const std::string& authority = contents->authority.empty() ? contents->certificate : contents->authority;
    *config = grpc_ssl_server_certificate_config_create(authority.c_str(), &pair, 1);
    given_ = std::move(contents);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  TlsReader reader_;
  grpc_server_credentials* credentials_ = nullptr;
  std::mutex mutex_;                          // guards what follows
  std::shared_ptr<const TlsContents> given_;  // null: none yet
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files) {
  if (files.certificate.empty()) return grpc::InsecureServerCredentials();
  return std::make_shared<WatchedCredentials>(files);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsContents& contents) {
  using Provider = grpc::experimental::StaticDataCertificateProvider;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.watch_root_certs();
  if (contents.certificate.empty()) {
    options.set_certificate_provider(std::make_shared<Provider>(contents.authority));
  } else {
    const std::vector<grpc::experimental::IdentityKeyCertPair> pairs{{contents.key, contents.certificate}};
    options.set_certificate_provider(std::make_shared<Provider>(contents.authority, pairs));
    options.watch_identity_key_cert_pairs();
  }
  return grpc::experimental::TlsCredentials(options);
}

}  // namespace ete::service
