#include "engine/models/json_fields.h"

#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {

JsonFields::JsonFields(const nlohmann::json& object, const std::string& file, std::string prefix)
    : object_(object), file_(file), prefix_(std::move(prefix)) {}

const nlohmann::json* JsonFields::find(const char* field) const {
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::fail(const char* field, const std::string& why) const {
  throw Error(ErrorCode::corrupt, file_ + ": " + prefix_ + field + " " + why);
}

void JsonFields::wrong_type(const char* field, const nlohmann::json& found, const char* due) const {
  fail(field, "is " + short_text(found) + ", but must be " + due);
}

std::optional<int64_t> JsonFields::integer(const char* field, IntegerRange range) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) wrong_type(field, *value, "a whole number");
  const bool huge = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (huge || value->get<int64_t>() < range.min || value->get<int64_t>() > range.max) {
    throw Error(ErrorCode::corrupt, file_ + ": " + prefix_ + field + " is " + value->dump() +
                                        ", but must be from " + std::to_string(range.min) + " to " +
                                        std::to_string(range.max));
  }
  return value->get<int64_t>();
}

std::optional<double> JsonFields::number(const char* field) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    wrong_type(field, *value, "a finite number");
  return value->get<double>();
}

std::optional<bool> JsonFields::boolean(const char* field) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) wrong_type(field, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonFields::string(const char* field) const {
  const nlohmann::json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong_type(field, *value, "a string");
  return value->get<std::string>();
}

int64_t JsonFields::required_integer(const char* field, IntegerRange range) const {
  const auto value = integer(field, range);
  if (!value) fail(field, "is missing, and the model cannot be computed without it");
  return *value;
}

std::string short_text(const nlohmann::json& value) {
  if (value.is_number_float()) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", value.get<double>());
    return text;
  }
  return printable(value.dump());
}

}  // namespace ete
