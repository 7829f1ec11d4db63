// Any bytes as a message of Engine.Session: refused with an Error, or a request within the model's limits.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>

#include "engine/base/error.h"
#include "services/worker/wire.h"

// protobuf would report each message that does not parse.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ete::v1::SessionRequest request;
  if (!request.ParseFromArray(data, static_cast<int>(size))) return 0;
  const ete::worker::ModelLimits limits{.vocab_size = 1000, .context = 256};
  try {
    if (request.has_open()) {
      const ete::OpenRequest open = ete::worker::to_open_request(request.open(), limits);
      if (open.prompt_ids.size() > 256 || open.wanted.top_k > 1000) std::abort();
    }
    if (request.has_step()) {
      const ete::StepRequest step = ete::worker::to_step_request(request.step(), limits);
      if (step.position + static_cast<int64_t>(step.ids.size()) > 256 || step.wanted.top_k > 1000)
        std::abort();
    }
  } catch (const ete::Error&) {
  }
  return 0;
}
