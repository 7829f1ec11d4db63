#include "services/front/page/page_reply.h"

#include <algorithm>
#include <string_view>

#include "services/front/page/page_data.h"

namespace ete::front {
namespace {

constexpr std::string_view kFolder = "/page/";
constexpr std::string_view kIndex = "index.html";

// Everything comes from here, and text that is made markup by a script is refused by the browser.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'";

std::string_view name_of(std::string_view path) {
  if (path == "/") return kIndex;
  return path.starts_with(kFolder) ? path.substr(kFolder.size()) : std::string_view();
}

const char* type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/javascript; charset=utf-8";
}

}  // namespace

std::optional<HttpReply> page_reply(const HttpRequest& request) {
  const auto files = page_data();
  const auto file = std::find_if(files.begin(), files.end(),
                                 [&](const PageData& one) { return one.name == name_of(request.path); });
  if (file == files.end()) return std::nullopt;
  if (request.method != "GET" && request.method != "HEAD") return std::nullopt;
  return HttpReply{.body = std::string(file->bytes.begin(), file->bytes.end()),
                   .content_type = type_of(file->name),
                   .headers = {{"Content-Security-Policy", kPolicy},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cache-Control", "no-cache"}}};
}

}  // namespace ete::front
