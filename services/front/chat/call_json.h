#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ete::front {

// A call of a tool as models write it: {"name": ..., "arguments" or "parameters": {...}}. Some leave the
// arguments out where there are none, or write them as a string of JSON.
struct CallJson {
  std::string name;
  std::string arguments;  // JSON of an object, or its beginning
};

// Discarded: it is no JSON, or nested too deeply.
nlohmann::ordered_json parse_shallow(std::string_view text);

// Bytes of the object that the text begins with; npos: it is not all there.
size_t object_size(std::string_view text);

// None: it is no such JSON.
std::optional<CallJson> read_call(std::string_view text);

// What a text that was cut off may be the beginning of.
struct CutCall {
  bool possible = false;         // a call
  std::optional<CallJson> call;  // where its name is complete
};
CutCall read_cut_call(std::string_view text);

}  // namespace ete::front
