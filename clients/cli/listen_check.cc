#include "clients/cli/listen_check.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <stdexcept>

#include "engine/base/error.h"

namespace ete::cli {
namespace {

[[noreturn]] void refuse(const std::string& flag, const service::Address& address,
                         const std::string& reason) {
  throw Error(ErrorCode::unavailable, flag + ": cannot listen at " + address.to_string() + ": " + reason);
}

}  // namespace

void check_can_listen(const std::string& flag, const service::Address& address) {
  if (address.kind == service::Address::Kind::unix_socket) {
    try {
      return service::claim_socket_path(address.path);
    } catch (const std::runtime_error& error) {
      throw Error(ErrorCode::unavailable, flag + ": " + error.what());
    }
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &list);
  if (error != 0) refuse(flag, address, gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  const int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) refuse(flag, address, strerror(errno));
  const int reuse = 1;  // sockets of a server that just ended do not count
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
  const bool bound = bind(fd, list->ai_addr, list->ai_addrlen) == 0;
  const std::string reason = strerror(errno);
  close(fd);
  if (!bound) refuse(flag, address, reason);
}

}  // namespace ete::cli
