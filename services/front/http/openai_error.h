#pragma once

#include <string>

#include "services/front/front_error.h"
#include "services/front/http/exchange.h"
#include "services/front/http/json_fields.h"

namespace ete::front {

// How a client of OpenAI's API calls the fields that generation.proto names otherwise.
struct FieldNames {
  std::string prompt = "prompt";
  std::string max_tokens = "max_tokens";
  std::string logprobs = "logprobs";
  std::string schema = "response_format.json_schema.schema";
};

// The error of a shared validation, about the client's own field.
FrontError in_client_words(const FrontError& error, const FieldNames& names);

// {"message", "type", "param", "code"}, as OpenAI describes an error.
RequestJson openai_error(const FrontError& error);

// {"error": {"message", "type", "param", "code"}} and the status that goes with it: the front's one table
// from its errors to HTTP's. Statuses from 500 on, and 429, are those after which clients try again.
HttpReply error_reply(const FrontError& error);

}  // namespace ete::front
