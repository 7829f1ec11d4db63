#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace ete::front {

// A value of an untrusted JSON file with its path, which errors name. Getters throw FrontError corrupt on a
// wrong type.
class JsonNode {
 public:
  using Json = nlohmann::json;

  static constexpr size_t kMaxBytes = 256u << 20;
  static constexpr int kMaxDepth = 64;

  // Parses a whole file. corrupt: no JSON, too deep, too long. The result must outlive its nodes.
  static Json parse(std::string_view file, const std::string& bytes);

  JsonNode(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  // An object's member; null and absent are the same.
  std::optional<JsonNode> find(std::string_view key) const;
  JsonNode at(std::string_view key) const;  // corrupt when absent
  JsonNode element(size_t i) const;         // of an array
  const Json& object() const;               // this, checked
  const Json& array() const;
  const std::string& string() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;  // corrupt outside [low, high]
  double number() const;

  bool boolean_or(std::string_view key, bool absent) const;
  std::string string_or(std::string_view key, std::string_view absent) const;

  // unsupported: a member that is not listed.
  void allow_only(std::initializer_list<std::string_view> keys) const;

  [[noreturn]] void corrupt(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

 private:
  void expect(bool ok, std::string_view type) const;

  const Json* value_;
  std::string path_;
};

}  // namespace ete::front
