#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace ete::front {

// Of JSON's types those that a value may be of; an integer is a number.
class JsonTypes {
 public:
  void add(std::string_view name);
  void add_of(const nlohmann::ordered_json& value);
  bool nothing_known() const { return bits_ == 0; }
  bool only_string() const;
  bool has_string() const;
  bool has_null() const;
  bool fits(const nlohmann::ordered_json& value) const;

 private:
  unsigned bits_ = 0;
};

// What the schemas of the tools of a request say of their parameters' types. They come from strangers and may
// refer to themselves, or to much from many places: what is found is kept, and where looking takes too long
// nothing more is known. Not thread-safe.
class ToolTypes {
 public:
  // tools: as OpenAI's API has them.
  explicit ToolTypes(std::shared_ptr<const nlohmann::ordered_json> tools) : tools_(std::move(tools)) {}

  bool has_tool(const std::string& name) const { return function_of(name) != nullptr; }
  JsonTypes of(const std::string& tool, const std::string& parameter);

 private:
  using Json = nlohmann::ordered_json;

  struct Tool {
    const Json* root = nullptr;  // what its references refer to; null: nothing is known
    std::unordered_map<std::string_view, const Json*> parameters;
    const Json* others = nullptr;  // of parameters with other names
  };

  const Json* function_of(const std::string& name) const;
  const Tool& tool_of(const std::string& name);
  JsonTypes types_of(const Json& root, const Json& schema);
  // Where its references lead.
  const Json& resolved(const Json& root, const Json& schema);
  const Json* referred(const Json& root, const Json& reference);
  void add_named(const Json& schema, JsonTypes& types);
  // Whether so much more may be looked at.
  bool spend(size_t steps);

  std::shared_ptr<const Json> tools_;
  std::map<std::string, Tool> known_tools_;
  std::unordered_map<const Json*, JsonTypes> known_types_;  // of schemas
  size_t left_ = 1'000'000;  // members and values of schemas that may yet be looked at
};

}  // namespace ete::front
