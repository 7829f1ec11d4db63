// A file, then 0xFF, then a text. The file is a tokenizer.json (when it begins with a brace) or a
// tokenizer.model: refused with FrontError, or a tokenizer that encodes and decodes the text.
#include <cstdint>
#include <string>

#include "tests/fuzz/tokenizer_fuzz_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = bytes.rfind('\xFF');  // no byte of a valid text
  const std::string file = bytes.substr(0, end);
  const std::string text = end == std::string::npos ? "the license  <s>a</s>" : bytes.substr(end + 1);
  try {
    const auto tokenizer = ete::front::tokenizer_from_files(
        {{file.starts_with('{') ? "tokenizer.json" : "tokenizer.model", file}});
    ete::front::fuzz_text(*tokenizer, text);
  } catch (const ete::front::FrontError&) {
  }
  return 0;
}
