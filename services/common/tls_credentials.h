#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "services/common/tls.h"

namespace ete::service {

// Of one port, for as long as its server lives; the files hold for connections made since they changed.
// Without a certificate: no TLS. std::runtime_error as read_tls_files.
std::shared_ptr<grpc::ServerCredentials> server_credentials(const TlsFiles& files);
// Of a client of servers that the authority signed.
std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const TlsContents& contents);

}  // namespace ete::service
