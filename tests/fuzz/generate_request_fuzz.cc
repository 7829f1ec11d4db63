// Any bytes as a client's message: refused with a FrontError, or a request within generation.proto's ranges.
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdlib>

#include "services/front/front_error.h"
#include "services/front/validation.h"

using ete::front::FrontError;

namespace {

const ete::front::ServedModel& byte_model() {
  static const ete::front::ServedModel model = [] {
    ete::front::GgufVocabulary vocabulary;
    vocabulary.model = "bytes";
    ete::front::ServedModel made;
    made.name = "toy";
    made.vocab_size = 300;
    made.context = 256;
    made.longest_token_bytes = 5;
    made.tokenizer = ete::front::tokenizer_from_gguf(vocabulary);
    return made;
  }();
  return model;
}

void generate(const ete::v1::GenerateRequest& request) {
  ete::front::GenerationRequest valid = ete::front::validate(request, byte_model());
  if (request.has_text()) valid.prompt_ids = ete::front::encode_prompt(request, byte_model());
  const bool in_range = !valid.prompt_ids.empty() && valid.prompt_ids.size() <= 256 &&
                        valid.sampling.temperature >= 0 && valid.sampling.top_p > 0 &&
                        valid.stops.size() <= 64;
  if (!in_range) std::abort();
  const ete::front::Sampler sampler(valid.sampling, byte_model().vocab_size, valid.prompt_ids,
                                    valid.logprobs);
  if (sampler.query().top_k > byte_model().vocab_size) std::abort();
}

}  // namespace

// protobuf would report each message that does not parse.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  google::protobuf::SetLogHandler(nullptr);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = static_cast<int>(size);
  try {
    ete::v1::GenerateRequest request;
    if (request.ParseFromArray(data, bytes)) generate(request);
  } catch (const FrontError&) {
  }
  try {
    ete::v1::DetokenizeRequest request;
    if (request.ParseFromArray(data, bytes)) {
      byte_model().tokenizer->decode(ete::front::validate(request, byte_model()), request.skip_special());
    }
  } catch (const FrontError&) {
  }
  return 0;
}
