#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

namespace ete::service {

// PEM files of one end of a connection; empty: none. They are read again when they change, and hold for
// connections made from then on. Certificate and key should change in one step (renaming a directory's
// link), or new connections fail between the two.
struct TlsFiles {
  std::string certificate;  // its own, then those between it and the authority
  std::string key;
  std::string authority;  // who signs the other end's; of a server: it then asks clients for one
};

// How a client shows itself to a server, and knows it.
struct ClientSecurity {
  TlsFiles tls;            // without an authority: no TLS
  std::string token_file;  // holds the bearer token; empty: none
};

// Throws std::runtime_error naming the file: missing, not PEM, or a key that is not the certificate's.
void check_tls_files(const TlsFiles& files);

// Without a certificate: credentials of a server without TLS.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files);
// Without an authority: those of a client without TLS.
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsFiles& files);

}  // namespace ete::service
