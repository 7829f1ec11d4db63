#include "services/front/http/request_target.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <utility>

namespace ete::front {
namespace {

std::string path_of(std::string_view path_and_query) {
  return std::string(path_and_query.substr(0, path_and_query.find('?')));
}

// What follows "http://" or "https://".
std::optional<std::string_view> after_scheme(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    const std::string_view begin = target.substr(0, scheme.size());
    if (boost::beast::iequals({begin.data(), begin.size()}, {scheme.data(), scheme.size()})) {
      return target.substr(scheme.size());
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<RequestTarget> parse_request_target(std::string_view method, std::string_view target) {
  if (target.starts_with('/')) return RequestTarget{.path = path_of(target), .host = {}};
  if (method == "CONNECT" || (method == "OPTIONS" && target == "*")) {
    return RequestTarget{.path = std::string(target), .host = {}};
  }
  const auto rest = after_scheme(target);
  if (!rest) return std::nullopt;
  const size_t end = std::min(rest->find_first_of("/?"), rest->size());
  const std::string_view host = rest->substr(0, end);
  if (host.empty() || host.starts_with(':') || host.find('@') != host.npos) return std::nullopt;
  std::string path = path_of(rest->substr(end));
  if (path.empty()) path = method == "OPTIONS" ? "*" : "/";
  return RequestTarget{.path = std::move(path), .host = std::string(host)};
}

}  // namespace ete::front
