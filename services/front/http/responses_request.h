#pragma once

#include <string>

#include "services/front/http/openai_request.h"

namespace ete::front {

// POST /v1/responses, the part of it that is text: input (items of text, calls of functions and their
// outputs), instructions, text.format, function tools. Responses are not kept, so none can be referred to.
// FrontError(invalid_argument, unsupported): names the field.
OpenAiRequest parse_responses_request(const std::string& body);

}  // namespace ete::front
