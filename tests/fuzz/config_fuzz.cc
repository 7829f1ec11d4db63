#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/error.h"
#include "engine/models/gguf_names.h"
#include "engine/models/hf_config.h"
#include "engine/weights/untrusted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto text = ete::as_text(std::as_bytes(std::span(data, size)));
  try {
    ete::CapabilityGate gate;
    ete::ModelConfig config = ete::read_hf_config(text, "config.json", gate);
    ete::expected_tensors(config);
  } catch (const ete::Error&) {
  }
  try {
    ete::ModelConfig config;
    ete::read_generation_config(text, "generation_config.json", config);
  } catch (const ete::Error&) {
  }
  return 0;
}
