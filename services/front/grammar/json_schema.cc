#include "services/front/grammar/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "services/common/safe_text.h"
#include "services/front/grammar/json_parts.h"
#include "services/front/grammar/schema_node.h"

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;
using Part = GrammarBuilder::Part;
using Rule = GrammarBuilder::Rule;

class SchemaReader {
 public:
  SchemaReader(const Json& document, GrammarBuilder& builder)
      : document_(document), builder_(builder), parts_(builder) {}

  Rule read() {
    const Rule root = target("#");
    while (!waiting_.empty()) {
      const auto [rule, schema, path] = waiting_.front();
      waiting_.pop_front();
      builder_.define(rule, value({*schema, path, builder_}));
    }
    return root;
  }

 private:
  struct Waiting {
    Rule rule;
    const Json* schema;
    std::string path;
  };

  // The schema at a pointer, as a rule: so that schemas may refer to themselves.
  Rule target(const std::string& pointer) {
    const auto known = targets_.find(pointer);
    if (known != targets_.end()) return known->second;
    const Rule rule = builder_.declare(service::safe_text(pointer, 100));
    targets_.emplace(pointer, rule);
    try {
      waiting_.push_back({rule, &document_.at(Json::json_pointer(pointer.substr(1))), pointer});
    } catch (const Json::exception&) {
      builder_.refuse("$ref: " + service::safe_text(pointer, 100) + " is not in the schema");
    }
    return rule;
  }

  Part value(const SchemaNode& schema) {
    if (schema.json() == true) return parts_.any_value();
    if (!schema.json().is_object()) schema.refuse("expected an object or true");
    if (schema.find("$ref") != nullptr) return reference(schema);
    if (schema.find("enum") != nullptr || schema.find("const") != nullptr) return listed(schema);
    if (schema.find("anyOf") != nullptr) return any_of(schema);
    if (schema.find("allOf") != nullptr) return all_of(schema);
    std::vector<std::string> types = schema.types();
    if (types.empty()) {
      schema.allow_only({});
      return parts_.any_value();
    }
    schema.allow_only(keywords_of(types));
    std::vector<Part> ways;
    for (const std::string& type : types) ways.push_back(typed(schema, type));
    return builder_.either(ways);
  }

  static std::vector<std::string_view> keywords_of(const std::vector<std::string>& types) {
    static const std::map<std::string, std::vector<std::string_view>, std::less<>> kKeywords = {
        {"object", {"properties", "required", "additionalProperties"}},
        {"array", {"items", "prefixItems", "minItems", "maxItems"}},
        {"string", {"minLength", "maxLength", "format"}},
        {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
        {"boolean", {}},
        {"null", {}}};
    std::vector<std::string_view> all = {"type"};
    for (const std::string& type : types) {
      const auto& more = kKeywords.at(type);
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }

  Part typed(const SchemaNode& schema, const std::string& type) {
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    if (type == "string") return string(schema);
    if (type == "integer") return integer(schema);
    if (type == "number") return number(schema);
    return type == "boolean" ? parts_.boolean() : parts_.null();
  }

  Part reference(const SchemaNode& schema) {
    schema.allow_only({"$ref"});
    const std::string pointer = schema.string("$ref");
    if (pointer != "#" && !pointer.starts_with("#/")) {
      schema.refuse("$ref " + service::safe_text(pointer, 100) +
                    "; expected one into this schema: # or #/...");
    }
    return builder_.call(target(pointer));
  }

  Part listed(const SchemaNode& schema) {
    schema.allow_only({"type", schema.find("enum") != nullptr ? "enum" : "const"});
    const Json* one = schema.find("const");
    const Json values = one != nullptr ? Json::array({*one}) : schema.list("enum");
    const std::vector<std::string> types = schema.types();
    std::vector<Part> ways;
    for (const Json& item : values) {
      const auto fits = [&](const std::string& type) { return SchemaNode::is_of(item, type); };
      if (!types.empty() && std::none_of(types.begin(), types.end(), fits)) continue;
      ways.push_back(builder_.literal(item.dump()));
    }
    if (ways.empty()) schema.refuse("no value is of the type");
    return builder_.either(ways);
  }

  Part any_of(const SchemaNode& schema) {
    schema.allow_only({"anyOf"});
    const Json& list = schema.list("anyOf");
    std::vector<Part> ways;
    for (size_t i = 0; i < list.size(); ++i) {
      ways.push_back(value(schema.below(list[i], "anyOf/" + std::to_string(i))));
    }
    return builder_.either(ways);
  }

  Part all_of(const SchemaNode& schema) {
    schema.allow_only({"allOf"});
    const Json& list = schema.list("allOf");
    if (list.size() != 1) schema.refuse("allOf of " + std::to_string(list.size()) + " schemas; expected one");
    return value(schema.below(list[0], "allOf/0"));
  }

  // A rule, since it may be called from two places.
  Rule rule_of(const SchemaNode& schema) {
    const Rule rule = builder_.declare(service::safe_text(schema.path(), 100));
    builder_.define(rule, value(schema));
    return rule;
  }

  struct Member {
    std::string key;  // with quotes
    Rule value;
    bool required;
  };

  std::vector<Member> members(const SchemaNode& schema) {
    std::vector<Member> all;
    const std::vector<std::string> required = schema.strings("required");
    const Json* properties = schema.find("properties");
    if (properties != nullptr && !properties->is_object()) schema.refuse("properties: expected an object");
    for (const std::string& name : required) {
      if (properties == nullptr || !properties->contains(name)) {
        schema.refuse("required: " + service::safe_text(name, 100) + " is not in properties");
      }
    }
    if (properties == nullptr) return all;
    for (const auto& [name, sub] : properties->items()) {
      const bool needed = std::find(required.begin(), required.end(), name) != required.end();
      all.push_back({Json(name).dump(), rule_of(schema.below(sub, "properties/" + name)), needed});
    }
    return all;
  }

  Part member(Part key, Rule value) {
    return builder_.sequence({key, builder_.literal(":"), parts_.space(), builder_.call(value)});
  }
  Part member(const Member& one) { return member(builder_.literal(one.key), one.value); }

  Part object(const SchemaNode& schema) {
    const std::vector<Member> all = members(schema);
    const Json* more = schema.find("additionalProperties");
    const bool closed = more != nullptr ? *more == false : !all.empty();
    if (all.empty() && closed) return builder_.literal("{}");
    std::optional<Rule> extra;
    if (!closed) {
      const Json anything = true;
      extra = rule_of(schema.below(more != nullptr ? *more : anything, "additionalProperties"));
    }
    const auto extra_member = [&] {
      std::vector<std::string> names;
      for (const Member& one : all) names.push_back(Json::parse(one.key).get<std::string>());
      return member(parts_.other_string(std::move(names)), *extra);
    };
    // rests[i]: what may follow a member before all[i].
    std::vector<Rule> rests;
    for (size_t i = 0; i <= all.size(); ++i) rests.push_back(builder_.declare("members of " + schema.path()));
    for (size_t i = 0; i < all.size(); ++i) {
      const Part here = builder_.sequence({parts_.comma(), member(all[i])});
      builder_.define(rests[i], builder_.sequence({all[i].required ? here : builder_.optional(here),
                                                   builder_.call(rests[i + 1])}));
    }
    builder_.define(rests[all.size()],
                    extra ? builder_.any_number(builder_.sequence({parts_.comma(), extra_member()}))
                          : builder_.nothing());
    std::vector<Part> begins;
    size_t i = 0;
    for (bool open = true; open && i < all.size(); ++i) {
      begins.push_back(builder_.sequence({member(all[i]), builder_.call(rests[i + 1])}));
      open = !all[i].required;
    }
    const bool all_optional =
        std::none_of(all.begin(), all.end(), [](const Member& one) { return one.required; });
    if (all_optional && extra) {
      begins.push_back(builder_.sequence({extra_member(), builder_.call(rests[all.size()])}));
    }
    const Part full = parts_.bracketed("{", builder_.either(begins), "}");
    return all_optional ? builder_.either({builder_.literal("{}"), full}) : full;
  }

  Part array(const SchemaNode& schema) {
    constexpr uint32_t kUnbounded = GrammarBuilder::kUnbounded;
    const uint32_t least = schema.count("minItems").value_or(0);
    const uint32_t most = schema.count("maxItems").value_or(kUnbounded);
    if (least > most) schema.refuse("minItems exceeds maxItems");
    const Json* items = schema.find("items");
    const Json* prefix = schema.find("prefixItems");
    const bool closed = items != nullptr && *items == false;
    std::vector<Part> first;
    for (size_t i = 0; prefix != nullptr && i < schema.list("prefixItems").size(); ++i) {
      if (i > 0) first.push_back(parts_.comma());
      first.push_back(value(schema.below((*prefix)[i], "prefixItems/" + std::to_string(i))));
    }
    const auto fixed = static_cast<uint32_t>((first.size() + 1) / 2);
    if (fixed > most) schema.refuse("maxItems: fewer than prefixItems has");
    if (closed && least > fixed) schema.refuse("minItems: more than prefixItems has, and items is false");
    if (most == 0 || (closed && fixed == 0)) return builder_.literal("[]");
    if (closed || fixed == most) return parts_.bracketed("[", builder_.sequence(first), "]");
    const Json anything = true;
    const Rule item = rule_of(schema.below(items != nullptr ? *items : anything, "items"));
    const uint32_t before = std::max<uint32_t>(fixed, 1);
    const uint32_t at_least = least > before ? least - before : 0;
    const Part more = builder_.repeat(builder_.sequence({parts_.comma(), builder_.call(item)}), at_least,
                                      most == kUnbounded ? kUnbounded : most - before);
    if (fixed == 0) first.push_back(builder_.call(item));
    first.push_back(more);
    const Part full = parts_.bracketed("[", builder_.sequence(first), "]");
    return least == 0 && fixed == 0 ? builder_.either({builder_.literal("[]"), full}) : full;
  }

  Part string(const SchemaNode& schema) {
    const auto least = schema.count("minLength");
    const auto most = schema.count("maxLength");
    if (schema.find("format") != nullptr) {
      const std::string name = schema.string("format");
      if (least || most) schema.refuse("minLength or maxLength beside format");
      const std::optional<Part> part = parts_.format(name);
      if (!part) {
        schema.refuse("format " + service::safe_text(name, 100) + " is not supported; expected " +
                      JsonParts::formats());
      }
      return *part;
    }
    if (!least && !most) return parts_.string();
    if (most && least.value_or(0) > *most) schema.refuse("minLength exceeds maxLength");
    return parts_.string(least.value_or(0), most);
  }

  Part integer(const SchemaNode& schema) {
    const auto least = schema.lower_bound();
    const auto most = schema.upper_bound();
    if (least && most && *least > *most) schema.refuse("no integer lies within its bounds");
    return parts_.integer(least, most);
  }

  Part number(const SchemaNode& schema) {
    for (const char* name : {"maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
      if (schema.find(name) != nullptr) schema.refuse(std::string(name) + " is supported for integers only");
    }
    const Json* least = schema.find("minimum");
    if (least == nullptr) return parts_.number();
    if (*least != 0) schema.refuse("minimum of a number is supported for 0 only; integers may have any");
    return parts_.positive_number();
  }

  const Json& document_;
  GrammarBuilder& builder_;
  JsonParts parts_;
  std::map<std::string, Rule, std::less<>> targets_;
  std::deque<Waiting> waiting_;
};

}  // namespace

Rule read_json_schema(std::string_view text, GrammarBuilder& builder) {
  const Json document = parse_schema(text, builder);
  return SchemaReader(document, builder).read();
}

Rule any_json_object(GrammarBuilder& builder) {
  const Rule root = builder.declare("a JSON object");
  builder.define(root, JsonParts(builder).any_object());
  return root;
}

}  // namespace ete::front
