#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace ete::service {

// Where a server listens or a client connects: "unix:/path" or "host:port" ("[::1]:port" for IPv6).
struct Address {
  enum class Kind { unix_socket, tcp };
  Kind kind = Kind::tcp;
  std::string path;  // unix_socket
  std::string host;  // tcp, without brackets
  int port = 0;      // tcp; 0: the system chooses, for a listener
  // Of a listener: the socket that already listens there (inherited_socket.h); -1: none does.
  int inherited_fd = -1;

  // As it was written.
  std::string to_string() const;
  // As gRPC takes it: bytes of the path that a URI cannot hold are escaped.
  std::string grpc_target() const;
  // Only processes of this machine can connect: a Unix socket, 127.0.0.0/8, ::1 or "localhost".
  bool is_local() const;
};

// Throws std::invalid_argument saying what would be accepted.
Address parse_address(std::string_view text);

// Makes way for a listener at `path`: removes a socket file that nobody listens at. Throws std::runtime_error
// when somebody does, when the path is another kind of file, or when the file cannot be removed.
void claim_socket_path(const std::string& path);

// Who may connect, once it is there. Throws std::runtime_error.
void set_socket_mode(const std::string& path, mode_t mode);

}  // namespace ete::service
