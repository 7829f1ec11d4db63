// Any bytes as a session's document: refused with an Error, or an image that this model takes.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/base/error.h"
#include "services/common/sha256.h"
#include "services/worker/session_blob.h"

namespace {

// The checksum would hide what lies behind it: each input is also tried with the right one.
std::string with_checksum(const std::string& document) {
  if (document.size() < 32) return document;
  std::string body = document.substr(0, document.size() - 32);
  ete::service::Sha256 digest;
  digest.add(body);
  return body + digest.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ete::worker::SessionFormat format{
      .model = std::string(32, 'm'),
      .sizes = {.context = 16, .vocab_size = 100, .position_bytes = 6, .state_bytes = 20}};
  const std::string given(reinterpret_cast<const char*>(data), size);
  for (const std::string& document : {given, with_checksum(given)}) {
    try {
      const ete::SessionImage image = ete::worker::read_session(document, format);
      if (image.positions > std::ssize(image.ids) || std::ssize(image.ids) > format.sizes.context)
        std::abort();
      if (!image.logits.empty() &&
          (image.positions == 0 || std::ssize(image.logits) != format.sizes.vocab_size))
        std::abort();
      if (ete::worker::write_session(image, format) != document) std::abort();
    } catch (const ete::Error&) {
    }
  }
  return 0;
}
