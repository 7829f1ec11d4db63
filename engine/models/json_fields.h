#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace ete {

struct IntegerRange {
  int64_t min = 1;
  int64_t max = std::numeric_limits<int32_t>::max();
};

// Typed reads of one JSON object. Absent and null are the same. Every error is Error(corrupt), naming
// file, field, the value found and what is due.
class JsonFields {
 public:
  // `object` and `file` must outlive this. `prefix` precedes field names in messages: "rope_scaling.".
  JsonFields(const nlohmann::json& object, const std::string& file, std::string prefix = "");

  std::optional<int64_t> integer(const char* field, IntegerRange range = {}) const;
  std::optional<double> number(const char* field) const;  // finite
  std::optional<bool> boolean(const char* field) const;
  std::optional<std::string> string(const char* field) const;
  const nlohmann::json* find(const char* field) const;  // null when absent or null

  int64_t required_integer(const char* field, IntegerRange range = {}) const;
  const std::string& file() const { return file_; }
  [[noreturn]] void fail(const char* field, const std::string& why) const;

 private:
  [[noreturn]] void wrong_type(const char* field, const nlohmann::json& found, const char* due) const;

  const nlohmann::json& object_;
  const std::string& file_;
  std::string prefix_;
};

// A value as the capability listing shows it: numbers as %g would, long values cut.
std::string short_text(const nlohmann::json& value);

}  // namespace ete
