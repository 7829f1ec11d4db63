#pragma once

#include <optional>
#include <string>

#include "ete/v1/generation.pb.h"
#include "services/front/chat/reply_parser.h"
#include "services/front/http/json_fields.h"

namespace ete::front {

// tools, tool_choice and parallel_tool_calls of a request.
struct ChatTools {
  RequestJson offered;    // as the client gave them, for the template; null: none, or none may be called
  RequestJson forced;     // those of which one has to be called; null: none has to
  bool one_call = false;  // parallel_tool_calls is false
};

// FrontError(invalid_argument, unsupported): names the field.
ChatTools read_tools(JsonFields& fields);

// Makes the output one call of one of the tools, in the style that the model's template shows it.
void force_call(const RequestJson& tools, ToolCallStyle style, v1::Grammar& grammar);

}  // namespace ete::front
