#pragma once

#include "ete/v1/generation.pb.h"
#include "services/front/http/json_fields.h"
#include "services/front/http/openai_error.h"

namespace ete::front {

// response_format, and grammar (rules as llama.cpp writes them), which OpenAI does not have: what the output
// has to be. Refuses both at once. FrontError(invalid_argument, unsupported): names the field.
void read_response_format(JsonFields& fields, v1::GenerateRequest& settings);

}  // namespace ete::front
