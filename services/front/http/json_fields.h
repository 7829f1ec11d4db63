#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace ete::front {

// Keeps the order of members: a template prints them.
using RequestJson = nlohmann::ordered_json;

// The bytes of a request, in time linear in them but for a logarithm. FrontError(invalid_argument) when they
// are no JSON object, nested too deeply, or have a member twice.
RequestJson parse_request_json(const std::string& bytes);

// Refuses a field's value in the words of every request's validation.
[[noreturn]] void refuse_field(const std::string& field, const std::string& value,
                               const std::string& accepted);

// How a value is shown in such a message.
std::string shown(const RequestJson& value);

// A number that is finite as a float; refused otherwise. path: of the value, for the message.
double number_of(const RequestJson& value, const std::string& path);

// The members of an untrusted JSON object. Absent and null are the same. Getters throw
// FrontError(invalid_argument), naming field, value and what would be accepted. What none of them asked for
// is refused in the end.
class JsonFields {
 public:
  // value: an object, and outlives this. path: "" for the request itself.
  JsonFields(const RequestJson& value, std::string path = "");

  const RequestJson* find(const std::string& name);
  std::optional<bool> boolean(const std::string& name);
  std::optional<int64_t> integer(const std::string& name, int64_t low, int64_t high);
  std::optional<double> number(const std::string& name);  // finite as a float
  std::optional<std::string> string(const std::string& name);

  // Accepted whatever it holds: it does not change what is generated.
  void ignore(const std::string& name) { known_.insert(name); }
  // A feature that is not there: absent, or a value that asks for nothing (false, 0, an empty list or
  // string), is fine.
  void unsupported(const std::string& name, const std::string& instead = "");
  // The same, where one word asks for what is done anyway.
  void unsupported_but(const std::string& name, const char* word, const std::string& instead = "");
  // null: it asks for nothing, whatever its name.
  void refuse_others() const;

  std::string path_of(const std::string& name) const;

 private:
  const RequestJson& value_;
  const std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace ete::front
