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

nlohmann::json parse_json(std::string_view text, const std::string& file, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes) {
    throw Error(ErrorCode::corrupt, file + ": " + std::to_string(text.size()) +
                                        " bytes of JSON, more than the " + std::to_string(limits.max_bytes) +
                                        " that are read");
  }
  using Event = nlohmann::json::parse_event_t;
  std::vector<std::set<std::string>> open_objects;
  const auto check = [&](int depth, Event event, nlohmann::json& value) {
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= limits.max_depth) {
        throw Error(ErrorCode::corrupt,
                    file + ": JSON nested deeper than " + std::to_string(limits.max_depth) + " levels");
      }
      if (event == Event::object_start) open_objects.emplace_back();
    } else if (event == Event::object_end) {
      open_objects.pop_back();
    } else if (event == Event::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) {
        throw Error(ErrorCode::corrupt, file + ": key \"" + printable(key) + "\" occurs twice in one object");
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::corrupt, file + ": not valid JSON: " + printable(e.what(), 300));
  }
}

}  // namespace ete
