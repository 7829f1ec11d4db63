#pragma once

#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/generation.h"
#include "services/front/served_model.h"

namespace ete::front {

// Each checks every field of a client's message against generation.proto and the model, and returns what it
// asks for with the defaults filled in. FrontError(invalid_argument): names the field, its value and what
// would be accepted. Const and thread-safe.

// Encodes the prompt; draws the seed and the request's name where absent.
GenerationRequest validate(const v1::GenerateRequest& request, const ServedModel& model);

EncodeOptions validate(const v1::TokenizeRequest& request);

std::vector<int32_t> validate(const v1::DetokenizeRequest& request, const ServedModel& model);

}  // namespace ete::front
