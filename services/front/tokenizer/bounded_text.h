#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "services/front/front_error.h"
#include "services/front/tokenizer/encode_watch.h"

namespace ete::front {

// What a normalizer may make of a text. Unicode's own worst case is 11 bytes for one (U+FDFA in NFKC); what
// grows more comes of a hostile file.
inline size_t normalized_limit(size_t text_bytes) {
  constexpr size_t kAlwaysAllowed = 1u << 20;
  constexpr size_t kFactor = 16;
  return std::max(kAlwaysAllowed, text_bytes * kFactor);
}

// A normalizer's output: refuses at the append that would pass the limit, so that no step ever holds more.
class BoundedText {
 public:
  BoundedText(size_t limit, EncodeWatch& watch) : limit_(limit), watch_(watch) {}

  // resource_exhausted: names the limit.
  void append(std::string_view text) {
    if (text.size() > limit_ - text_.size()) {
      throw FrontError(FrontErrorCode::resource_exhausted,
                       "text: normalizing it makes more than " + std::to_string(limit_) + " bytes");
    }
    text_ += text;
    watch_.advance(text.size());
  }
  void reserve(size_t bytes) { text_.reserve(std::min(bytes, limit_)); }
  std::string& text() { return text_; }
  size_t limit() const { return limit_; }
  std::string take() { return std::move(text_); }

 private:
  size_t limit_;
  EncodeWatch& watch_;
  std::string text_;
};

}  // namespace ete::front
