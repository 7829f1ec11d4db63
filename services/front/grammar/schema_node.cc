#include "services/front/grammar/schema_node.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "services/common/safe_text.h"
#include "services/front/grammar/json_schema.h"

namespace ete::front {
namespace {

using Json = SchemaNode::Json;

constexpr int kMostDepth = 64;
constexpr std::array<const char*, 7> kTypes = {"object", "array",   "string", "integer",
                                               "number", "boolean", "null"};
// What says nothing about which values are accepted.
constexpr std::array<std::string_view, 12> kDescriptive = {
    "title",    "description", "default",  "examples",  "$schema", "$id",
    "$comment", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions"};

}  // namespace

Json parse_schema(std::string_view text, const GrammarBuilder& builder) {
  if (text.size() > kMostSchemaBytes) {
    builder.refuse(std::to_string(text.size()) + " bytes; at most " + std::to_string(kMostSchemaBytes) +
                   " are accepted");
  }
  const auto within_depth = [&](int depth, Json::parse_event_t /*event*/, Json& /*parsed*/) {
    if (depth > kMostDepth) builder.refuse("nested more than " + std::to_string(kMostDepth) + " deep");
    return true;
  };
  try {
    return Json::parse(text, within_depth);
  } catch (const Json::exception& error) {
    builder.refuse("no JSON: " + service::safe_text(error.what(), 200));
  }
}

void SchemaNode::refuse(const std::string& what) const {
  builder_.refuse("at " + service::safe_text(path_, 200) + ": " + what);
}

const Json* SchemaNode::find(const char* name) const {
  const auto it = json_.find(name);
  return it == json_.end() ? nullptr : &*it;
}

std::string SchemaNode::string(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr || !value->is_string()) refuse(std::string(name) + ": expected a string");
  return value->get<std::string>();
}

const Json& SchemaNode::list(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr || !value->is_array() || value->empty()) {
    refuse(std::string(name) + ": expected a list that is not empty");
  }
  return *value;
}

std::vector<std::string> SchemaNode::strings(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return {};
  const auto is_string = [](const Json& item) { return item.is_string(); };
  if (!value->is_array() || !std::all_of(value->begin(), value->end(), is_string)) {
    refuse(std::string(name) + ": expected a list of strings");
  }
  return value->get<std::vector<std::string>>();
}

std::optional<uint32_t> SchemaNode::count(const char* name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_unsigned() && value->get<uint64_t>() <= GrammarBuilder::kMostRepeats;
  if (!fits) {
    refuse(std::string(name) + ": expected a whole number, at most " +
           std::to_string(GrammarBuilder::kMostRepeats));
  }
  return value->get<uint32_t>();
}

std::vector<std::string> SchemaNode::types() const {
  const Json* type = find("type");
  if (type == nullptr) {
    for (const char* name : {"properties", "required", "additionalProperties"}) {
      if (find(name) != nullptr) return {"object"};
    }
    for (const char* name : {"items", "prefixItems", "minItems", "maxItems"}) {
      if (find(name) != nullptr) return {"array"};
    }
    return {};
  }
  const std::vector<std::string> names =
      type->is_string() ? std::vector<std::string>{type->get<std::string>()} : strings("type");
  for (const std::string& name : names) {
    if (std::find(kTypes.begin(), kTypes.end(), name) == kTypes.end()) {
      refuse("type " + service::safe_text(name, 100) +
             "; expected object, array, string, integer, number, boolean or null");
    }
  }
  if (names.empty()) refuse("type: expected at least one");
  return names;
}

bool SchemaNode::is_of(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number_float() && std::trunc(value.get<double>()) == value.get<double>());
}

std::optional<int64_t> SchemaNode::bound(int inward, const char* inclusive, const char* exclusive) const {
  constexpr int64_t kMost = int64_t{1} << 53;  // where floating-point numbers are still exact
  std::optional<int64_t> tightest;
  for (const char* name : {inclusive, exclusive}) {
    const Json* value = find(name);
    if (value == nullptr) continue;
    if (!value->is_number() || std::abs(value->get<double>()) > static_cast<double>(kMost)) {
      refuse(std::string(name) + ": expected a number within 2^53 of 0");
    }
    const double number = value->get<double>();
    const double whole = inward > 0 ? std::ceil(number) : std::floor(number);
    auto bound = static_cast<int64_t>(whole);
    if (name == exclusive && whole == number) bound += inward;
    if (!tightest || (bound - *tightest) * inward > 0) tightest = bound;
  }
  return tightest;
}

void SchemaNode::allow_only(const std::vector<std::string_view>& keywords) const {
  for (const auto& [name, value] : json_.items()) {
    const auto holds = [&name = name](const auto& list) {
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    if (!holds(keywords) && !holds(kDescriptive)) {
      refuse("\"" + service::safe_text(name, 100) + "\" is not supported here");
    }
  }
}

}  // namespace ete::front
