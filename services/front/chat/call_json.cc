#include "services/front/chat/call_json.h"

#include <algorithm>
#include <array>
#include <utility>

#include "services/front/chat/json_builder.h"
#include "services/front/chat/reply_tags.h"

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostDepth = 64;
constexpr std::array<std::string_view, 2> kArguments = {"arguments", "parameters"};
// With what else models write in a call.
constexpr std::array<std::string_view, 5> kKeys = {"name", "arguments", "parameters", "type", "id"};

bool is_arguments(std::string_view key) {
  return std::find(kArguments.begin(), kArguments.end(), key) != kArguments.end();
}

class ShallowBuilder final : public JsonBuilder {
 public:
  // size: of the text.
  explicit ShallowBuilder(size_t size) : JsonBuilder(kMostDepth), size_(size) {}

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& error) override {
    // A number that no double holds does not get better by what follows.
    is_open_ = position > size_ && error.id != kNumberOverflow;
    return false;
  }

  // Whether there was nothing wrong but that it ended.
  bool is_open() const { return is_open_; }

 private:
  const size_t size_;
  bool is_open_ = false;
};

// Whether JSON may go on from here.
bool is_beginning(std::string_view text) {
  ShallowBuilder builder(text.size());
  return Json::sax_parse(text, &builder) || builder.is_open();
}

struct Value {
  std::string_view text;
  bool whole = false;
};

// A string, an object or list, or a word, as far as it is there.
Value value_at(std::string_view text) {
  bool in_string = false;
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
      if (!in_string && depth == 0) return {text.substr(0, i + 1), true};
    } else if (!in_string && (c == '{' || c == '[')) {
      ++depth;
    } else if (!in_string && (c == '}' || c == ']')) {
      if (depth == 0) return {text.substr(0, i), true};
      if (--depth == 0) return {text.substr(0, i + 1), true};
    } else if (!in_string && depth == 0 && (c == ',' || c == ' ' || c == '\n')) {
      return {text.substr(0, i), true};
    }
  }
  return {text, false};
}

// Of an object; none: these are no arguments.
std::optional<std::string> arguments_of(const Json& given) {
  if (given.is_null()) return "{}";
  if (given.is_object()) return given.dump();
  if (!given.is_string()) return std::nullopt;
  const auto& text = given.get_ref<const std::string&>();
  if (without_space_before(text).empty()) return "{}";
  const Json inner = parse_shallow(text);
  return inner.is_object() ? std::optional(inner.dump()) : std::nullopt;
}

// What a string that is cut says so far: an escape of which a part is missing is not there yet.
std::optional<std::string> beginning_of(std::string_view text) {
  constexpr size_t kLongestEscape = sizeof("\\ud83d\\ude00") - 1;
  for (size_t gone = 0; gone < kLongestEscape && gone < text.size(); ++gone) {
    const Json json = parse_shallow(std::string(text.substr(0, text.size() - gone)) + '"');
    if (json.is_string()) return json.get<std::string>();
  }
  return std::nullopt;
}

// Reads a call as far as it goes.
class CutReader {
 public:
  explicit CutReader(std::string_view text) : text_(text) {}

  CutCall read() {
    if (ended()) return so_far();
    if (!take('{')) return {};
    do {
      if (ended()) return so_far();
      if (text_.front() != '"') return {};
      const Value key = value();
      if (!is_key(key)) return {};
      if (ended()) return so_far();
      if (!take(':')) return {};
      if (ended()) return so_far();
      const Value given = value();
      if (!fits(key.text.substr(1, key.text.size() - 2), given)) return {};
      if (ended()) return so_far();
    } while (take(','));
    return {};
  }

 private:
  bool ended() {
    text_ = without_space_before(text_);
    return text_.empty();
  }

  bool take(char c) {
    if (text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  CutCall so_far() const {
    if (!name_) return {.possible = true, .call = std::nullopt};
    return {.possible = true, .call = CallJson{*name_, arguments_}};
  }

  Value value() {
    const Value value = value_at(text_);
    text_.remove_prefix(value.text.size());
    return value;
  }

  static bool is_key(const Value& key) {
    return std::any_of(kKeys.begin(), kKeys.end(), [&](std::string_view known) {
      const std::string quoted = '"' + std::string(known) + '"';
      return key.whole ? quoted == key.text : quoted.starts_with(key.text);
    });
  }

  // Whether a call may have this; keeps what is known of it.
  bool fits(std::string_view key, const Value& given) {
    if (!given.whole && !is_beginning(given.text)) return false;
    const Json json = given.whole ? parse_shallow(given.text) : Json();
    if (json.is_discarded()) return false;
    if (key == "name") {
      if (!given.text.starts_with('"')) return false;
      if (given.whole) name_ = json.get<std::string>();
    } else if (is_arguments(key)) {
      return fits_arguments(given, json);
    }
    return true;
  }

  bool fits_arguments(const Value& given, const Json& json) {
    if (given.whole) {
      const auto arguments = arguments_of(json);
      arguments_ = arguments.value_or("");
      return arguments.has_value();
    }
    if (given.text.starts_with('"')) {
      const auto beginning = beginning_of(given.text);
      arguments_ = beginning ? std::string(without_space_before(*beginning)) : "";
      return arguments_.empty() || is_beginning(arguments_);
    }
    if (std::string_view("null").starts_with(given.text)) return true;
    arguments_ = given.text;
    return arguments_.starts_with('{');
  }

  std::string_view text_;  // what is left of it
  std::optional<std::string> name_;
  std::string arguments_;
};

}  // namespace

Json parse_shallow(std::string_view text) {
  ShallowBuilder builder(text.size());
  return Json::sax_parse(text, &builder) ? builder.take() : Json(Json::value_t::discarded);
}

std::optional<CallJson> read_call(std::string_view text) {
  const Json json = parse_shallow(text);
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return std::nullopt;
  Json given;
  for (const std::string_view key : kArguments) {
    if (given.is_null() && json.contains(key)) given = json[key];
  }
  const auto arguments = arguments_of(given);
  if (!arguments) return std::nullopt;
  return CallJson{json["name"].get<std::string>(), *arguments};
}

size_t object_size(std::string_view text) {
  const Value value = text.starts_with('{') ? value_at(text) : Value();
  return value.whole ? value.text.size() : std::string_view::npos;
}

CutCall read_cut_call(std::string_view text) { return CutReader(text).read(); }

}  // namespace ete::front
