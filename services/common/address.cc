#include "services/common/address.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace ete::service {
namespace {

constexpr std::string_view kUnixScheme = "unix:";
constexpr size_t kMaxSocketPath = sizeof(sockaddr_un::sun_path) - 1;

std::string system_message(int error) { return std::generic_category().message(error); }

Address parse_unix(std::string_view path) {
  if (path.empty() || path.size() > kMaxSocketPath || path.find('\0') != std::string_view::npos) {
    throw std::invalid_argument("\"" + std::string(kUnixScheme) + std::string(path) +
                                "\": the path of a Unix socket has 1 to " + std::to_string(kMaxSocketPath) +
                                " bytes, this has " + std::to_string(path.size()));
  }
  Address address;
  address.kind = Address::Kind::unix_socket;
  address.path = path;
  return address;
}

// Closes on destruction.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

bool somebody_listens(const std::string& path) {
  const FileDescriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) throw std::runtime_error("cannot make a socket: " + system_message(errno));
  sockaddr_un target{};
  target.sun_family = AF_UNIX;
  std::memcpy(target.sun_path, path.data(), path.size());
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0 ||
         errno != ECONNREFUSED;
}

bool has_directory(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() || std::filesystem::is_directory(parent, ignored);
}

}  // namespace

std::string Address::to_string() const {
  if (kind == Kind::unix_socket) return std::string(kUnixScheme) + path;
  const bool bracketed = host.find(':') != std::string::npos;
  return (bracketed ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::string Address::grpc_target() const {
  if (kind == Kind::tcp) return to_string();
  std::string target(kUnixScheme);
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0 || std::strchr("/-_.~", c) != nullptr) {
      target += c;
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      target += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return target;
}

bool Address::is_local() const {
  if (kind == Kind::unix_socket || host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

Address parse_address(std::string_view text) {
  if (text.substr(0, kUnixScheme.size()) == kUnixScheme) return parse_unix(text.substr(kUnixScheme.size()));

  const auto refuse = [text] {
    throw std::invalid_argument(
        "\"" + std::string(text) +
        "\" is not an address: unix:/path or host:port, as 127.0.0.1:50051 or [::1]:50051");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) refuse();
  Address address;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string_view port = text.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 0 || address.port > 65535)
    refuse();
  if (host.empty() || (host.find(':') != std::string_view::npos) != bracketed) refuse();
  for (const char c : host) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::strchr(".-_:%", c) == nullptr) refuse();
  }
  address.host = host;
  return address;
}

void claim_socket_path(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) throw std::runtime_error("unix:" + path + ": " + system_message(errno));
    if (has_directory(path)) return;
    throw std::runtime_error("unix:" + path + ": there is no such directory");
  }
  if (!S_ISSOCK(info.st_mode)) {
    throw std::runtime_error("unix:" + path + ": the path exists and is not a socket");
  }
  if (somebody_listens(path)) throw std::runtime_error("unix:" + path + ": another process listens there");
  if (unlink(path.c_str()) != 0) {
    throw std::runtime_error("unix:" + path + ": cannot remove the stale socket: " + system_message(errno));
  }
}

void set_socket_mode(const std::string& path, mode_t mode) {
  if (chmod(path.c_str(), mode) != 0) {
    throw std::runtime_error("unix:" + path + ": cannot set its mode: " + system_message(errno));
  }
}

}  // namespace ete::service
