// Any bytes as the body of a request of OpenAI's API: refused with a FrontError, or requests within its
// limits.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "services/front/front_error.h"
#include "services/front/http/openai_request.h"

namespace {

template <typename Parse>
void try_body(Parse parse, const std::string& body, bool is_chat) {
  try {
    const ete::front::OpenAiRequest request = parse(body);
    const auto choices = static_cast<int64_t>(request.prompts.size()) * request.n;
    if (request.chat.has_value() != is_chat || request.n < 1) std::abort();
    if (choices > ete::front::OpenAiRequest::kMostChoices) std::abort();
    for (const ete::v1::GenerateRequest& prompt : request.prompts) {
      if (request.choice(prompt, request.n - 1).prompt_case() == ete::v1::GenerateRequest::PROMPT_NOT_SET) {
        std::abort();
      }
    }
  } catch (const ete::front::FrontError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string body(reinterpret_cast<const char*>(data), size);
  try_body(ete::front::parse_completion, body, false);
  try_body(ete::front::parse_chat_completion, body, true);
  return 0;
}
