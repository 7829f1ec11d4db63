#include "engine/weights/untrusted.h"

#include <set>
#include <vector>

#include "engine/base/error.h"

namespace ete {

std::string printable(std::string_view bytes, size_t limit) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    }
  }
  if (bytes.size() > limit) text += "...";
  return text;
}

std::optional<int64_t> checked_product(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

namespace {

using ParseEvent = nlohmann::json::parse_event_t;

// Why a document whose objects hold fewer members than keys is refused. Reads it again: only then are keys
// kept.
[[noreturn]] void refuse_repeated_key(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int, ParseEvent event, nlohmann::json& value) {
    if (event == ParseEvent::object_start) open_objects.emplace_back();
    if (event == ParseEvent::object_end) open_objects.pop_back();
    if (event == ParseEvent::key && !open_objects.back().insert(value.get_ref<const std::string&>()).second) {
      throw Error(ErrorCode::corrupt, file + ": key \"" + printable(value.get_ref<const std::string&>()) +
                                          "\" occurs twice in one object");
    }
    return true;
  };
  [[maybe_unused]] const nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), check);
  throw Error(ErrorCode::corrupt, file + ": a key occurs twice in one object");
}

// Follows a parse: refuses what is too deep or too much, and notes whether an object lost a member to another
// of the same key.
class JsonWatch {
 public:
  JsonWatch(const std::string& file, const JsonLimits& limits) : file_(file), limits_(limits) {}
  bool repeats_a_key() const { return repeats_a_key_; }

  void see(int depth, ParseEvent event, const nlohmann::json& value) {
    switch (event) {
      case ParseEvent::object_start:
      case ParseEvent::array_start:
        if (depth >= limits_.max_depth) refuse("nested deeper than", limits_.max_depth, "levels");
        if (event == ParseEvent::object_start) keys_.push_back(0);
        break;
      case ParseEvent::object_end:
        repeats_a_key_ = repeats_a_key_ || value.size() != keys_.back();
        keys_.pop_back();
        break;
      case ParseEvent::key:
        ++keys_.back();
        [[fallthrough]];
      case ParseEvent::value:
        if (++values_ > limits_.max_values) refuse("of more than", limits_.max_values, "keys and values");
        break;
      case ParseEvent::array_end:
        break;
    }
  }

 private:
  template <typename Number>
  [[noreturn]] void refuse(const char* how, Number most, const char* what) const {
    throw Error(ErrorCode::corrupt, file_ + ": JSON " + how + " " + std::to_string(most) + " " + what);
  }

  const std::string& file_;
  const JsonLimits& limits_;
  std::vector<size_t> keys_;  // of the objects that are open
  size_t values_ = 0;
  bool repeats_a_key_ = false;
};

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw Error(ErrorCode::corrupt, file + ": " + std::to_string(text.size()) +
                                        " bytes of JSON, more than the " + std::to_string(limits.max_bytes) +
                                        " that are read");
  }
  JsonWatch watch(file, limits);
  const auto see = [&](int depth, ParseEvent event, nlohmann::json& value) {
    watch.see(depth, event, value);
    return true;
  };
  try {
    nlohmann::json document = nlohmann::json::parse(text.begin(), text.end(), see);
    if (watch.repeats_a_key()) refuse_repeated_key(text, file);
    return document;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::corrupt, file + ": not valid JSON: " + printable(e.what(), 300));
  }
}

}  // namespace ete
