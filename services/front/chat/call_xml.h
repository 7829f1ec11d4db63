#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "services/front/chat/call_json.h"

namespace ete::front {

inline constexpr std::string_view kFunction = "<function=";

// A call of a tool as models of Qwen3-Coder's kind write it:
//   <function=name> <parameter=key>\nvalue\n</parameter> ... </function>
// tools: as OpenAI's API has them. A value is JSON where the tool's schema asks for something else than a
// string and the text is that, and a string where not; null is null wherever the schema lets it be.

// None: it is no such text.
std::optional<CallJson> read_xml_call(std::string_view text, const nlohmann::ordered_json& tools);

// Of the last value, which is not whole, only a string is told.
CutCall read_cut_xml_call(std::string_view text, const nlohmann::ordered_json& tools);

}  // namespace ete::front
