#include "services/front/chat/call_xml.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>

#include "services/front/chat/reply_tags.h"

namespace ete::front {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

bool may_be_string(JsonTypes types) { return types.nothing_known() || types.has_string(); }

// Templates show a model its own calls with Python's words, which it then repeats.
Json word_of_python(std::string_view text) {
  if (text == "True" || text == "False") return text == "True";
  return text == "None" ? Json() : parse_shallow(text);
}

Json value_of(std::string_view text, JsonTypes types) {
  if (types.nothing_known() || types.only_string()) return text;
  Json value = word_of_python(text);
  const bool fits = !value.is_discarded() && types.fits(value);
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
  XmlReader(std::string_view text, ToolTypes& types) : text_(text), types_(types) {}

  // Whether it is a whole call.
  bool read() {
    skip_space();
    if (!take(kFunction) || !take_name(name_)) return false;
    is_named_ = true;
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
    const JsonTypes types = types_.of(name_, key);
    const size_t end = text_.find(kParameterEnd);
    if (end == std::string_view::npos) {
      is_open_ = true;
      if (may_be_string(types) && !types.has_null()) begin_string(key);
      return false;
    }
    std::string_view value = without_line_before(text_.substr(0, end));
    if (value.ends_with('\n')) value.remove_suffix(1);
    add(std::move(key), value_of(value, types));
    text_.remove_prefix(end + kParameterEnd.size());
    return true;
  }

  // operator[] would look through all that are there.
  void add(std::string key, Json value) {
    auto& members = arguments_.get_ref<Json::object_t&>();
    const auto [it, is_new] = places_.try_emplace(key, members.size());
    if (is_new) {
      members.emplace_back(std::move(key), std::move(value));
    } else {
      std::next(members.begin(), static_cast<std::ptrdiff_t>(it->second))->second = std::move(value);
    }
  }

  void begin_string(const std::string& key) {
    const std::string_view text = without_line_before(text_);
    const std::string end = '\n' + std::string(kParameterEnd);
    const size_t tail = std::max(open_tail(text, end), open_tail(text, kParameterEnd));
    last_ = dumped(key) + ':' + dumped(text.substr(0, text.size() - tail));
    last_.pop_back();
  }

  std::string_view text_;  // what is left of it
  ToolTypes& types_;
  bool is_open_ = false;  // it ended where more of a call may come
  bool is_named_ = false;
  std::string name_;
  Json arguments_ = Json::object();
  std::unordered_map<std::string, size_t> places_;  // of its members
  std::string last_;                                // the beginning of the last member
};

}  // namespace

XmlCallEnd::Found XmlCallEnd::look(std::string_view text) {
  while (at_ < text.size()) {
    const std::string_view rest = text.substr(at_);
    if (in_ == In::value) {
      const size_t end = rest.find(kParameterEnd);
      if (end == std::string_view::npos) {
        at_ += rest.size() - open_tail(rest, kParameterEnd);
        return Found::none_yet;
      }
      at_ += end + kParameterEnd.size();
      in_ = In::tags;
    } else if (in_ == In::function || in_ == In::key) {
      const size_t end = rest.find_first_of("<>\n");
      is_named_ = is_named_ || end > 0;
      at_ += std::min(end, rest.size());
      if (end == std::string_view::npos) return Found::none_yet;
      if (rest[end] != '>' || !is_named_) return Found::no_call;
      ++at_;
      in_ = in_ == In::function ? In::tags : In::value;
    } else if (const size_t space = rest.size() - without_space_before(rest).size(); space > 0) {
      at_ += space;
    } else if (rest.starts_with(kParameter)) {
      at_ += kParameter.size();
      is_named_ = false;
      in_ = In::key;
    } else if (rest.starts_with(kFunctionEnd)) {
      at_ += kFunctionEnd.size();
      return Found::end;
    } else {
      const bool open = kParameter.starts_with(rest) || kFunctionEnd.starts_with(rest);
      return open ? Found::none_yet : Found::no_call;
    }
  }
  return Found::none_yet;
}

std::optional<CallJson> read_xml_call(std::string_view text, ToolTypes& types) {
  XmlReader reader(text, types);
  if (!reader.read()) return std::nullopt;
  return reader.call();
}

CutCall read_cut_xml_call(std::string_view text, ToolTypes& types) {
  XmlReader reader(text, types);
  if (reader.read()) return {.possible = true, .call = reader.call()};
  return reader.cut();
}

}  // namespace ete::front
