#pragma once

#include <memory>

#include "services/front/http/completion_call.h"
#include "services/front/http/exchange.h"

namespace ete::front {

// GET /status: what the worker does now, as one JSON object, also while it loads or is away (then "state" is
// "away" and "why" says why). Of several workers it is one that serves, if any does; "workers" then holds the
// object of each, with its name as "worker". Does not block.
void answer_status(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange);

}  // namespace ete::front
