#include "services/common/service_manager.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "clients/options/command_line.h"

namespace ete::service {
namespace {

constexpr std::chrono::minutes kLoadStep{5};  // the longest that a load may be silent

// Empty when it is not set.
std::string taken_from_environment(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

// A newline would begin a further field.
std::string in_one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

ServiceManager::ServiceManager() : socket_(taken_from_environment("NOTIFY_SOCKET")) {
  const std::string period = taken_from_environment("WATCHDOG_USEC");
  const std::string watched = taken_from_environment("WATCHDOG_PID");
  if (!watched.empty() && watched != std::to_string(getpid())) return;
  const auto microseconds = parse_integer(period, 1, std::numeric_limits<int64_t>::max());
  // Half of what systemd waits, so that one late call does no harm.
  if (microseconds) interval_ = std::chrono::milliseconds(std::max<int64_t>(*microseconds / 2000, 1));
}

void ServiceManager::loading(const std::string& status) const {
  const auto extension = std::chrono::microseconds(kLoadStep).count();
  tell("STATUS=" + in_one_line(status) + "\nEXTEND_TIMEOUT_USEC=" + std::to_string(extension));
}

void ServiceManager::ready(const std::string& status) const {
  tell("READY=1\nSTATUS=" + in_one_line(status));
}

void ServiceManager::stopping() const { tell("STOPPING=1\nSTATUS=stopping"); }

void ServiceManager::alive() const { tell("WATCHDOG=1", MSG_DONTWAIT); }

void ServiceManager::tell(const std::string& state, int flags) const {
  if (socket_.empty()) return;
  sockaddr_un target{};
  target.sun_family = AF_UNIX;
  if (socket_.size() >= sizeof(target.sun_path)) {
    spdlog::warn("NOTIFY_SOCKET is longer than the path of a socket can be: {} bytes", socket_.size());
    return;
  }
  std::memcpy(target.sun_path, socket_.data(), socket_.size());
  if (socket_.front() == '@') target.sun_path[0] = '\0';  // an abstract address
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  // A manager that hangs is no reason to hang as well.
  constexpr timeval kPatience{.tv_sec = 5, .tv_usec = 0};
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket_.size());
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL | flags,
                       reinterpret_cast<const sockaddr*>(&target), size) < 0) {
    spdlog::warn("cannot tell the service manager at {}: {}", socket_, std::strerror(errno));
  }
  if (fd >= 0) close(fd);
}

}  // namespace ete::service
