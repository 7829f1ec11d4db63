#pragma once

#include <memory>

#include "services/front/http/completion_call.h"
#include "services/front/http/exchange.h"

namespace ete::front {

// POST /tokenize and /detokenize. They answer, or throw FrontError about the request.
void answer_tokenize(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange);
void answer_detokenize(const OpenAiHost& host, const std::shared_ptr<HttpExchange>& exchange);

}  // namespace ete::front
