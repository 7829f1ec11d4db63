#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/common/address.h"
#include "services/common/connection_acceptor.h"
#include "services/common/tls.h"

namespace ete::service {

struct ListenOptions {
  Address address;
  int max_receive_bytes = 16 << 20;  // a larger message ends its call with RESOURCE_EXHAUSTED
  int max_streams = 1024;            // of one connection at a time; further ones wait at the client
  size_t max_buffer_bytes = 0;       // gRPC's own, of all connections; 0: no bound
  TlsFiles tls = {};                 // without a certificate: no TLS
  mode_t socket_mode = 0600;         // of a Unix socket that it makes
  std::optional<Address> control = std::nullopt;  // besides; a Unix socket of mode 0600, without TLS
};

// A gRPC server with health (grpc.health.v1) and reflection, listening from construction on; NOT_SERVING
// until told otherwise. Thread-safe, but for shutdown and destruction.
class ListeningServer {
 public:
  // The services outlive the server. Throws std::runtime_error naming the address when it cannot listen, or
  // the TLS file that cannot be used.
  ListeningServer(const ListenOptions& options, const std::vector<grpc::Service*>& services);
  ~ListeningServer();  // shutdown, without grace
  ListeningServer(const ListeningServer&) = delete;
  ListeningServer& operator=(const ListeningServer&) = delete;

  // What health answers for the server as a whole.
  void set_serving(bool serving);
  // With the port that the system chose when 0 was asked for.
  const Address& address() const { return address_; }
  // For when long calls have ended. Refuses new calls, cancels those still running after `grace`, returns
  // when all have ended.
  void shutdown(std::chrono::milliseconds grace);

 private:
  Address address_;
  const std::shared_ptr<grpc::ServerCredentials> credentials_;  // outlive the server
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // of an inherited socket; ends before the server
};

}  // namespace ete::service
