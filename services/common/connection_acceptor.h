#pragma once

#include <grpcpp/server_builder.h>

#include <memory>
#include <thread>

namespace ete::service {

// Accepts connections of a listening socket for a gRPC server, which can only listen at addresses of its own.
class ConnectionAcceptor {
 public:
  using Sink = grpc::experimental::ExternalConnectionAcceptor;

  // Owns the listening socket `fd`. Throws std::system_error.
  ConnectionAcceptor(int fd, std::unique_ptr<Sink> sink);
  ~ConnectionAcceptor();  // stop
  ConnectionAcceptor(const ConnectionAcceptor&) = delete;
  ConnectionAcceptor& operator=(const ConnectionAcceptor&) = delete;

  // Once the server runs.
  void start();
  // Before the server shuts down. Who connects afterwards waits for the next process that accepts.
  void stop();

 private:
  void accept_until_stopped();

  int listener_;
  int end_fd_;
  std::unique_ptr<Sink> sink_;
  std::thread thread_;
};

}  // namespace ete::service
