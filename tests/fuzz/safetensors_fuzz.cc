#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/base/error.h"
#include "engine/weights/safetensors_file.h"
#include "engine/weights/untrusted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    volatile uint8_t sink = 0;
    for (const ete::SourceTensor& tensor : ete::parse_safetensors(bytes, "fuzz.safetensors")) {
      if (tensor.data_bytes == 0) continue;
      sink = std::to_integer<uint8_t>(tensor.data[0]) ^
             std::to_integer<uint8_t>(tensor.data[tensor.data_bytes - 1]);
    }
    (void)sink;
  } catch (const ete::Error&) {
  }
  try {
    ete::parse_safetensors_index(ete::as_text(bytes), "fuzz.index.json");
  } catch (const ete::Error&) {
  }
  return 0;
}
