#pragma once

#include <memory>

#include "services/front/http/openai_reply.h"

namespace ete::front {

// The words of /v1/responses: output items (thoughts, a message, calls of functions) and their events.
std::unique_ptr<OpenAiReply> make_responses_reply(std::shared_ptr<const ServedModel> model,
                                                  const OpenAiRequest& request, const ReplyStyle& style);

}  // namespace ete::front
