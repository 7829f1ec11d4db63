// Any bytes as tokenizer.json (when they begin with a brace) or tokenizer.model: refused with FrontError, or
// a tokenizer that encodes and decodes.
#include <cstdint>
#include <string>

#include "services/front/front_error.h"
#include "services/front/tokenizer/stream_decoder.h"

using ete::front::FrontError;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const char* name = bytes.starts_with('{') ? "tokenizer.json" : "tokenizer.model";
  try {
    const auto tokenizer = ete::front::tokenizer_from_files({{name, bytes}});
    for (const char* text :
         {"the license  12 \n", "caf\u00E9 e\u0301\u0323 \u6F22\U0001F600", "<s>a</s>ab  abab<unk>"}) {
      try {
        const auto ids = tokenizer->encode(text, {.add_special = true, .parse_special = true});
        tokenizer->decode_text(ids);
        ete::front::StreamDecoder decoder(*tokenizer, true);
        for (const int32_t id : ids) decoder.push(id);
        decoder.flush();
      } catch (const FrontError&) {
      }
    }
  } catch (const FrontError&) {
  }
  return 0;
}
