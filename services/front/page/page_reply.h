#pragma once

#include <optional>

#include "services/front/http/exchange.h"

namespace ete::front {

// The page that a front serves to people: "/", and what it loads from "/page/". Empty: the path is none of
// its files. The page is the same for everybody, holds no data of a model, and loads nothing from anywhere
// else (Content-Security-Policy). Thread-safe.
std::optional<HttpReply> page_reply(const HttpRequest& request);

}  // namespace ete::front
