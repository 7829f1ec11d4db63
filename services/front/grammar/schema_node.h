#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "services/front/grammar/grammar_builder.h"

namespace ete::front {

// A schema within an untrusted JSON Schema document, with its place, which refusals name. A view: document
// and builder outlive it.
class SchemaNode {
 public:
  using Json = nlohmann::ordered_json;

  SchemaNode(const Json& json, std::string path, const GrammarBuilder& builder)
      : json_(json), path_(std::move(path)), builder_(builder) {}

  const Json& json() const { return json_; }
  const std::string& path() const { return path_; }
  SchemaNode below(const Json& json, const std::string& name) const {
    return {json, path_ + "/" + name, builder_};
  }

  const Json* find(const char* name) const;
  // Each refuses another type.
  std::string string(const char* name) const;
  const Json& list(const char* name) const;                  // not empty
  std::vector<std::string> strings(const char* name) const;  // absent: none
  std::optional<uint32_t> count(const char* name) const;

  // The types that "type" names, or to which the keywords of objects and arrays belong; none: any.
  std::vector<std::string> types() const;
  static bool is_of(const Json& value, const std::string& type);

  // Of integers, inclusive, from minimum and exclusiveMinimum, and from maximum and exclusiveMaximum.
  std::optional<int64_t> lower_bound() const { return bound(1, "minimum", "exclusiveMinimum"); }
  std::optional<int64_t> upper_bound() const { return bound(-1, "maximum", "exclusiveMaximum"); }

  // Any keyword but these and those that only describe is refused.
  void allow_only(const std::vector<std::string_view>& keywords) const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::optional<int64_t> bound(int inward, const char* inclusive, const char* exclusive) const;

  const Json& json_;
  const std::string path_;
  const GrammarBuilder& builder_;
};

// A document's bytes.
SchemaNode::Json parse_schema(std::string_view text, const GrammarBuilder& builder);

}  // namespace ete::front
