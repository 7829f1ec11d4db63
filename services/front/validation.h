#pragma once

#include <functional>
#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/generation.h"
#include "services/front/served_model.h"

namespace ete::front {

// Each checks every field of a client's message against generation.proto and the model, and returns what it
// asks for with the defaults filled in. FrontError(invalid_argument): names the field, its value and what
// would be accepted. Const and thread-safe.

// Draws the seed and the request's name where absent. Quick: a prompt of text is only checked for its size,
// and its ids are left to encode_prompt.
GenerationRequest validate(const v1::GenerateRequest& request, const ServedModel& model);

// The ids of a prompt of text; the costly part, when the text is long. on_progress is called now and then;
// what it throws ends the work.
std::vector<int32_t> encode_prompt(const v1::GenerateRequest& request, const ServedModel& model,
                                   std::function<void()> on_progress = nullptr);

EncodeOptions validate(const v1::TokenizeRequest& request);

std::vector<int32_t> validate(const v1::DetokenizeRequest& request, const ServedModel& model);

}  // namespace ete::front
