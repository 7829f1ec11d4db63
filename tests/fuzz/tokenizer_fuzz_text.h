#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "services/front/front_error.h"
#include "services/front/tokenizer/stream_decoder.h"

namespace ete::front {

inline void fuzz_require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "tokenizer: %s\n", what);
  std::abort();
}

// What holds for every tokenizer and text: encoding is refused with FrontError or gives ids, as many as
// max_ids allows, that decode, at once and as a stream.
inline void fuzz_text(const Tokenizer& tokenizer, const std::string& text) {
  for (const bool special : {false, true}) {
    std::vector<int32_t> ids;
    try {
      ids = tokenizer.encode(text, {.add_special = special, .parse_special = special});
    } catch (const FrontError&) {
      continue;
    }
    if (!ids.empty()) {
      bool refused = false;
      try {
        tokenizer.encode(text, {.add_special = special, .parse_special = special, .max_ids = ids.size() - 1});
      } catch (const FrontError& e) {
        refused = e.code() == FrontErrorCode::resource_exhausted;
      }
      fuzz_require(refused, "max_ids is not kept");
    }
    const std::string whole = tokenizer.decode_text(ids, special);
    fuzz_require(find_invalid_utf8(whole) == std::string::npos, "decode_text() is not UTF-8");
    StreamDecoder decoder(tokenizer, special);
    std::string streamed;
    for (const int32_t id : ids) streamed += decoder.push(id);
    streamed += decoder.flush();
    // A stream knows nothing of a whole run of byte tokens: see StreamDecoder.
    if (tokenizer.table().invalid_bytes != InvalidBytes::per_run)
      fuzz_require(streamed == whole, "a stream differs from the whole");
  }
}

}  // namespace ete::front
