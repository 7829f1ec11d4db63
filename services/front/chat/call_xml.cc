#include "services/front/chat/call_xml.h"

#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "services/front/chat/reply_tags.h"

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;
using Types = std::set<std::string, std::less<>>;

constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";
// Schemas come from strangers, and may refer to themselves.
constexpr int kMostSchemas = 1000;

std::string type_of(const Json& value) {
  if (!value.is_number()) return value.type_name();
  if (value.is_number_integer()) return "integer";
  const double number = value.get<double>();
  return std::floor(number) == number ? "integer" : "number";
}

// What the types of JSON are of which a schema says that a value may be of them.
class SchemaTypes {
 public:
  // root: what its references refer to.
  explicit SchemaTypes(const Json& root) : root_(root) {}

  Types of(const Json& schema) {
    add(schema);
    return std::move(types_);
  }

  const Json& resolved(const Json& schema) {
    const Json* found = &schema;
    while (found->is_object() && found->contains("$ref") && --left_ > 0) {
      const Json* target = referred((*found)["$ref"]);
      if (target == nullptr) break;
      found = target;
    }
    return *found;
  }

 private:
  const Json* referred(const Json& reference) const {
    const std::string text = reference.is_string() ? reference.get<std::string>() : "";
    if (!text.starts_with('#')) return nullptr;
    try {
      return &root_.at(Json::json_pointer(text.substr(1)));
    } catch (const Json::exception&) {
      return nullptr;
    }
  }

  void add(const Json& schema) {
    if (--left_ <= 0) return;
    const Json& found = resolved(schema);
    if (!found.is_object()) return;
    add_named(found);
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      if (!found.contains(word) || !found[word].is_array()) continue;
      for (const Json& one : found[word]) add(one);
    }
  }

  void add_named(const Json& schema) {
    if (const auto type = schema.find("type"); type != schema.end()) {
      for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
        if (one.is_string()) types_.insert(one.get<std::string>());
      }
      return;
    }
    if (const auto values = schema.find("enum"); values != schema.end() && values->is_array()) {
      for (const Json& one : *values) types_.insert(type_of(one));
    }
    if (const auto value = schema.find("const"); value != schema.end()) types_.insert(type_of(*value));
  }

  const Json& root_;
  int left_ = kMostSchemas;
  Types types_;
};

// nullptr: nothing is known of the tool's parameters.
const Json* parameters_of(const Json& tools, const std::string& name) {
  for (const Json& tool : tools) {
    const Json& function = tool["function"];
    if (function["name"] == name) return function.contains("parameters") ? &function["parameters"] : nullptr;
  }
  return nullptr;
}

// Empty: nothing is known of them.
Types types_of(const Json* parameters, const std::string& key) {
  if (parameters == nullptr) return {};
  SchemaTypes schemas(*parameters);
  const Json& all = schemas.resolved(*parameters);
  if (!all.is_object()) return {};
  if (const auto own = all.find("properties"); own != all.end() && own->contains(key)) {
    return schemas.of((*own)[key]);
  }
  const auto others = all.find("additionalProperties");
  return others == all.end() ? Types() : schemas.of(*others);
}

bool may_be_string(const Types& types) { return types.empty() || types.contains("string"); }

// Templates show a model its own calls with Python's words, which it then repeats.
Json word_of_python(std::string_view text) {
  if (text == "True" || text == "False") return text == "True";
  return text == "None" ? Json() : parse_shallow(text);
}

Json value_of(std::string_view text, const Types& types) {
  Json value = word_of_python(text);
  const std::string type = value.is_discarded() ? "string" : type_of(value);
  const bool fits = types.contains(type) || (type == "integer" && types.contains("number"));
  if (fits && (value.is_null() || !may_be_string(types))) return value;
  return text;
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// The template's own line ends.
std::string_view without_line_before(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  return value;
}

class XmlReader {
 public:
  XmlReader(std::string_view text, const Json& tools) : text_(text), tools_(tools) {}

  // Whether it is a whole call.
  bool read() {
    skip_space();
    if (!take(kFunction) || !take_name(name_)) return false;
    is_named_ = true;
    parameters_ = parameters_of(tools_, name_);
    skip_space();
    while (!take(kFunctionEnd)) {
      if (!take(kParameter) || !take_parameter()) return false;
      skip_space();
    }
    skip_space();
    return text_.empty();
  }

  CallJson call() const { return {name_, dumped(arguments_)}; }

  // Where it is no whole call.
  CutCall cut() const {
    if (!is_open_) return {};
    if (!is_named_) return {.possible = true, .call = std::nullopt};
    std::string begun = dumped(arguments_);
    begun.pop_back();
    if (!arguments_.empty() && !last_.empty()) begun += ',';
    return {.possible = true, .call = CallJson{name_, begun + last_}};
  }

 private:
  void skip_space() { text_ = without_space_before(text_); }

  bool take(std::string_view tag) {
    if (!text_.starts_with(tag)) {
      is_open_ = is_open_ || tag.starts_with(text_);
      return false;
    }
    text_.remove_prefix(tag.size());
    return true;
  }

  // As far as the end of its tag.
  bool take_name(std::string& name) {
    const size_t end = text_.find_first_of("<>\n");
    is_open_ = end == std::string_view::npos;
    if (is_open_ || end == 0 || text_[end] != '>') return false;
    name = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return true;
  }

  bool take_parameter() {
    std::string key;
    if (!take_name(key)) return false;
    const Types types = types_of(parameters_, key);
    const size_t end = text_.find(kParameterEnd);
    if (end == std::string_view::npos) {
      is_open_ = true;
      if (may_be_string(types) && !types.contains("null")) begin_string(key);
      return false;
    }
    std::string_view value = without_line_before(text_.substr(0, end));
    if (value.ends_with('\n')) value.remove_suffix(1);
    arguments_[key] = value_of(value, types);
    text_.remove_prefix(end + kParameterEnd.size());
    return true;
  }

  void begin_string(const std::string& key) {
    const std::string_view text = without_line_before(text_);
    const std::string end = '\n' + std::string(kParameterEnd);
    const size_t tail = std::max(open_tail(text, end), open_tail(text, kParameterEnd));
    last_ = dumped(key) + ':' + dumped(text.substr(0, text.size() - tail));
    last_.pop_back();
  }

  std::string_view text_;  // what is left of it
  const Json& tools_;
  bool is_open_ = false;  // it ended where more of a call may come
  bool is_named_ = false;
  std::string name_;
  const Json* parameters_ = nullptr;
  Json arguments_ = Json::object();
  std::string last_;  // the beginning of the last member
};

}  // namespace

std::optional<CallJson> read_xml_call(std::string_view text, const Json& tools) {
  XmlReader reader(text, tools);
  if (!reader.read()) return std::nullopt;
  return reader.call();
}

CutCall read_cut_xml_call(std::string_view text, const Json& tools) {
  XmlReader reader(text, tools);
  if (reader.read()) return {.possible = true, .call = reader.call()};
  return reader.cut();
}

}  // namespace ete::front
