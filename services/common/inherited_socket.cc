#include "services/common/inherited_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "clients/options/command_line.h"

namespace ete::service {
namespace {

constexpr std::string_view kScheme = "fd:";
constexpr int kFirst = 3;  // below are the standard streams

bool is_listening_stream(int fd) {
  int listens = 0;
  int type = 0;
  socklen_t size = sizeof(int);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) return false;
  size = sizeof(int);
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

void set_unix_path(const sockaddr_storage& bound, socklen_t size, Address& address) {
  address.kind = Address::Kind::unix_socket;
  const auto* path = reinterpret_cast<const sockaddr_un*>(&bound)->sun_path;
  const size_t longest = size - offsetof(sockaddr_un, sun_path);
  address.path.assign(path, strnlen(path, longest));
}

void set_host_and_port(const sockaddr_storage& bound, Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (bound.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bound);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    address.port = ntohs(v6->sin6_port);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bound);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    address.port = ntohs(v4->sin_port);
  }
  address.host = text;
}

}  // namespace

Address parse_listen_address(std::string_view text) {
  if (text.substr(0, kScheme.size()) != kScheme) return parse_address(text);
  const auto refuse = [text](const std::string& why) {
    throw std::invalid_argument("\"" + std::string(text) + "\": " + why +
                                ": fd:N is a listening stream socket that whoever starts this left open");
  };
  const auto fd = parse_integer(text.substr(kScheme.size()), kFirst, std::numeric_limits<int>::max());
  if (!fd) refuse("no number of at least 3");
  Address address;
  address.inherited_fd = static_cast<int>(*fd);
  if (!is_listening_stream(address.inherited_fd)) refuse("no such socket");
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(address.inherited_fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    refuse(std::strerror(errno));
  }
  if (bound.ss_family == AF_UNIX) {
    set_unix_path(bound, size, address);
  } else if (bound.ss_family == AF_INET || bound.ss_family == AF_INET6) {
    set_host_and_port(bound, address);
  } else {
    refuse("neither a Unix nor a TCP socket");
  }
  // Not for the children of this process.
  fcntl(address.inherited_fd, F_SETFD, FD_CLOEXEC);
  return address;
}

}  // namespace ete::service
