#include "services/front/tokenizer/json_node.h"

#include <algorithm>
#include <cmath>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

bool too_deep(std::string_view bytes) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > JsonNode::kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

JsonNode::Json JsonNode::parse(std::string_view file, const std::string& bytes) {
  const auto fail = [&](const std::string& what) {
    throw FrontError(FrontErrorCode::corrupt, std::string(file) + ": " + what);
  };
  if (bytes.size() > kMaxBytes)
    fail(std::to_string(bytes.size()) + " bytes; at most " + std::to_string(kMaxBytes));
  if (too_deep(bytes)) fail("nested more than " + std::to_string(kMaxDepth) + " deep");
  try {
    return Json::parse(bytes);
  } catch (const Json::exception& e) {
    fail(e.what());
  }
  return {};
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
  const Json& members = object();
  const auto it = members.find(key);
  if (it == members.end() || it->is_null()) return std::nullopt;
  return JsonNode(*it, path_ + "." + std::string(key));
}

JsonNode JsonNode::at(std::string_view key) const {
  const auto node = find(key);
  if (!node) corrupt("\"" + std::string(key) + "\" is missing");
  return *node;
}

JsonNode JsonNode::element(size_t i) const {
  if (i >= array().size()) corrupt("has " + std::to_string(array().size()) + " elements");
  return JsonNode((*value_)[i], path_ + "[" + std::to_string(i) + "]");
}

void JsonNode::expect(bool ok, std::string_view type) const {
  if (!ok) corrupt("is of type " + std::string(value_->type_name()) + ", not " + std::string(type));
}

const JsonNode::Json& JsonNode::object() const {
  expect(value_->is_object(), "object");
  return *value_;
}

const JsonNode::Json& JsonNode::array() const {
  expect(value_->is_array(), "array");
  return *value_;
}

const std::string& JsonNode::string() const {
  expect(value_->is_string(), "string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  expect(value_->is_boolean(), "boolean");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t low, int64_t high) const {
  expect(value_->is_number_integer(), "integer");
  const bool huge =
      value_->is_number_unsigned() && value_->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (huge || value_->get<int64_t>() < low || value_->get<int64_t>() > high) {
    corrupt("is " + value_->dump() + ", not in [" + std::to_string(low) + ", " + std::to_string(high) + "]");
  }
  return value_->get<int64_t>();
}

double JsonNode::number() const {
  expect(value_->is_number(), "number");
  const double d = value_->get<double>();
  if (!std::isfinite(d)) corrupt("is not finite");
  return d;
}

bool JsonNode::boolean_or(std::string_view key, bool absent) const {
  const auto node = find(key);
  return node ? node->boolean() : absent;
}

std::string JsonNode::string_or(std::string_view key, std::string_view absent) const {
  const auto node = find(key);
  return node ? node->string() : std::string(absent);
}

void JsonNode::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, member] : object().items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      unsupported("the field \"" + key + "\" is not known");
    }
  }
}

void JsonNode::corrupt(const std::string& what) const {
  throw FrontError(FrontErrorCode::corrupt, path_ + ": " + what);
}

void JsonNode::unsupported(const std::string& what) const {
  throw FrontError(FrontErrorCode::unsupported, path_ + ": " + what);
}

}  // namespace ete::front
