#include "services/front/worker_names.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

namespace ete::front {
namespace {

constexpr std::string_view kDns = "dns:";

}  // namespace

std::vector<WorkerName> parse_workers(const std::string& text) {
  std::vector<WorkerName> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view one = std::string_view(text).substr(begin, end - begin);
    WorkerName name;
    name.dns = one.starts_with(kDns);
    if (name.dns) one.remove_prefix(kDns.size());
    name.address = service::parse_address(one);
    if (name.dns && name.address.kind != service::Address::Kind::tcp) {
      throw std::invalid_argument("\"dns:" + std::string(one) + "\": expected dns:host:port");
    }
    for (const WorkerName& other : names) {
      if (other.dns == name.dns && other.address.to_string() == name.address.to_string()) {
        throw std::invalid_argument("\"" + std::string(one) + "\" is named twice");
      }
    }
    names.push_back(std::move(name));
    begin = end + 1;
  }
  return names;
}

std::string WorkerLabel::without_path(std::string text) const {
  if (address.kind != service::Address::Kind::unix_socket) return text;
  for (const std::string& hidden : {address.to_string(), address.grpc_target(), address.path}) {
    for (size_t at = text.find(hidden); at != std::string::npos; at = text.find(hidden, at + name.size())) {
      text.replace(at, hidden.size(), name);
    }
  }
  return text;
}

WorkerLabel label_of(const service::Address& address, size_t place) {
  const bool is_unix = address.kind == service::Address::Kind::unix_socket;
  return {address, is_unix ? "socket " + std::to_string(place + 1) : address.to_string()};
}

std::vector<service::Address> resolve(const WorkerName& name) {
  if (!name.dns) return {name.address};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(name.address.host.c_str(), nullptr, &hints, &list);
  if (error != 0) throw std::runtime_error(name.address.host + ": " + gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<service::Address> addresses;
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    char host[NI_MAXHOST];
    if (getnameinfo(one->ai_addr, one->ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) {
      continue;
    }
    service::Address address = name.address;
    address.host = host;
    const auto known = std::any_of(addresses.begin(), addresses.end(),
                                   [&](const service::Address& other) { return other.host == address.host; });
    if (!known) addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace ete::front
