#pragma once

#include "services/front/http/completion_call.h"

namespace ete::front {

// FrontError(invalid_argument) for more choices than can ever be admitted together: to be tried again later
// would help nobody.
void require_few_choices(const OpenAiHost& host, const OpenAiRequest& request, const service::Caller& caller);

}  // namespace ete::front
