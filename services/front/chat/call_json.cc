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
  struct Value {
    std::string_view text;
    bool whole = false;
  };

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

  // A string, an object or list, or a word, as far as it is there.
  Value value() {
    bool in_string = false;
    int depth = 0;
    for (size_t i = 0; i < text_.size(); ++i) {
      const char c = text_[i];
      if (in_string && c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = !in_string;
        if (!in_string && depth == 0) return taken(i + 1);
      } else if (!in_string && (c == '{' || c == '[')) {
        ++depth;
      } else if (!in_string && (c == '}' || c == ']')) {
        if (depth == 0) return taken(i);
        if (--depth == 0) return taken(i + 1);
      } else if (!in_string && depth == 0 && (c == ',' || c == ' ' || c == '\n')) {
        return taken(i);
      }
    }
    return {std::exchange(text_, {}), false};
  }
  Value taken(size_t size) {
    const std::string_view text = text_.substr(0, size);
    text_.remove_prefix(size);
    return {text, true};
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
      if (!given.text.starts_with('{')) return false;
      arguments_ = given.whole ? json.dump() : std::string(given.text);
    }
    return true;
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
  for (const std::string_view key : kArguments) {
    const auto it = json.find(key);
    if (it == json.end()) continue;
    if (!it->is_object()) return std::nullopt;
    return CallJson{json["name"].get<std::string>(), it->dump()};
  }
  return std::nullopt;
}

CutCall read_cut_call(std::string_view text) { return CutReader(text).read(); }

}  // namespace ete::front
