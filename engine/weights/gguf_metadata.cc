#include "engine/weights/gguf_metadata.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

[[noreturn]] void wrong_type(const std::string& key, const std::string& found, const char* due) {
  throw Error(ErrorCode::corrupt, key + ": holds " + found + " where " + due + " is due");
}

std::string array_name(const GgufArray& array) {
  return std::string("[") + std::to_string(array.count) + " x " + std::string(name_of(array.element)) + "]";
}

int64_t integer_at(const GgufArray& array, size_t i, const std::string& key) {
  const std::byte* data = array.bytes.data() + i * min_bytes(array.element);
  switch (array.element) {
    case GgufType::u8:
      return load<uint8_t>(data);
    case GgufType::i8:
      return load<int8_t>(data);
    case GgufType::u16:
      return load<uint16_t>(data);
    case GgufType::i16:
      return load<int16_t>(data);
    case GgufType::u32:
      return load<uint32_t>(data);
    case GgufType::i32:
      return load<int32_t>(data);
    case GgufType::i64:
      return load<int64_t>(data);
    case GgufType::u64:
      if (load<uint64_t>(data) <= INT64_MAX) return load<int64_t>(data);
      [[fallthrough]];
    default:
      wrong_type(key, array_name(array), "an array of whole numbers");
  }
}

}  // namespace

std::string_view name_of(GgufType type) {
  switch (type) {
    case GgufType::u8:
      return "u8";
    case GgufType::i8:
      return "i8";
    case GgufType::u16:
      return "u16";
    case GgufType::i16:
      return "i16";
    case GgufType::u32:
      return "u32";
    case GgufType::i32:
      return "i32";
    case GgufType::f32:
      return "f32";
    case GgufType::boolean:
      return "bool";
    case GgufType::string:
      return "string";
    case GgufType::array:
      return "array";
    case GgufType::u64:
      return "u64";
    case GgufType::i64:
      return "i64";
    case GgufType::f64:
      return "f64";
  }
  CHECK(false, "GGUF type " + std::to_string(static_cast<uint32_t>(type)));
}

size_t min_bytes(GgufType type) {
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean:
      return 1;
    case GgufType::u16:
    case GgufType::i16:
      return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32:
      return 4;
    case GgufType::string:
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64:
      return 8;
    case GgufType::array:
      return 12;
  }
  CHECK(false, "GGUF type " + std::to_string(static_cast<uint32_t>(type)));
}

std::vector<std::string> GgufArray::strings(const std::string& key) const {
  if (element != GgufType::string) wrong_type(key, array_name(*this), "an array of strings");
  std::vector<std::string> values;
  values.reserve(count);
  const std::byte* data = bytes.data();
  for (uint64_t i = 0; i < count; ++i) {
    const auto length = load<uint64_t>(data);
    values.emplace_back(reinterpret_cast<const char*>(data + sizeof length), length);
    data += sizeof length + length;
  }
  return values;
}

std::vector<float> GgufArray::floats(const std::string& key) const {
  if (element != GgufType::f32) wrong_type(key, array_name(*this), "an array of f32");
  std::vector<float> values(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<int64_t> GgufArray::integers(const std::string& key) const {
  std::vector<int64_t> values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) values.push_back(integer_at(*this, i, key));
  return values;
}

std::vector<bool> GgufArray::booleans(const std::string& key) const {
  if (element != GgufType::boolean) wrong_type(key, array_name(*this), "an array of booleans");
  std::vector<bool> values;
  for (uint64_t i = 0; i < count; ++i) values.push_back(bytes[i] != std::byte{0});
  return values;
}

std::string to_text(const GgufValue& value) {
  if (const auto* u = std::get_if<uint64_t>(&value)) return std::to_string(*u);
  if (const auto* i = std::get_if<int64_t>(&value)) return std::to_string(*i);
  if (const auto* b = std::get_if<bool>(&value)) return *b ? "true" : "false";
  if (const auto* s = std::get_if<std::string_view>(&value)) return std::string("\"") + printable(*s) + "\"";
  if (const auto* array = std::get_if<GgufArray>(&value)) return array_name(*array);
  char text[32];
  std::snprintf(text, sizeof text, "%g", std::get<double>(value));
  return text;
}

void GgufMetadata::add(std::string key, GgufValue value, const std::string& file_name) {
  if (!by_key_.emplace(key, entries_.size()).second) {
    throw Error(ErrorCode::corrupt, file_name + ": key " + printable(key) + " occurs twice");
  }
  entries_.emplace_back(std::move(key), value);
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = by_key_.find(std::string(key));
  return found == by_key_.end() ? nullptr : &entries_[found->second].second;
}

std::optional<int64_t> GgufMetadata::integer(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (const auto* i = std::get_if<int64_t>(value)) return *i;
  const auto* u = std::get_if<uint64_t>(value);
  if (u == nullptr || *u > INT64_MAX) wrong_type(key, to_text(*value), "a whole number of at most 63 bits");
  return static_cast<int64_t>(*u);
}

std::optional<double> GgufMetadata::number(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* number = std::get_if<double>(value);
  if (number == nullptr || !std::isfinite(*number)) wrong_type(key, to_text(*value), "a finite f32 or f64");
  return *number;
}

std::optional<bool> GgufMetadata::boolean(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* flag = std::get_if<bool>(value);
  if (flag == nullptr) wrong_type(key, to_text(*value), "a bool");
  return *flag;
}

std::optional<std::string> GgufMetadata::string(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::nullopt;
  const auto* text = std::get_if<std::string_view>(value);
  if (text == nullptr) wrong_type(key, to_text(*value), "a string");
  return std::string(*text);
}

const GgufArray* GgufMetadata::array(const std::string& key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr) wrong_type(key, to_text(*value), "an array");
  return array;
}

}  // namespace ete
