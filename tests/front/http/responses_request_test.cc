#include "services/front/http/responses_request.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

std::string with_input(const std::string& more) { return R"({"input": "x", )" + more + "}"; }

TEST(ResponsesRequest, WhatNoReplyHasMayBeAskedFor) {
  for (
      const char* more :
      {R"("include": [])", R"("include": null)", R"("include": ["reasoning.encrypted_content"])",
       R"("include": ["web_search_call.results", "web_search_call.action.sources", "file_search_call.results",
                       "code_interpreter_call.outputs", "computer_call_output.output.image_url",
                       "message.input_image.image_url"])",
       R"("reasoning": {"summary": "auto"})", R"("reasoning": {"generate_summary": "auto"})",
       R"("truncation": "disabled")", R"("truncation": null)"}) {
    EXPECT_EQ(parse_responses_request(with_input(more)).settings.ShortDebugString(),
              "sampling { } stopping { }")
        << more;
  }
}

TEST(ResponsesRequest, WhatWouldBeMissedIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("include": ["reasoning.encrypted_content", "message.output_text.logprobs"])", "include[1]"},
      {R"("include": ["everything"])", "include[0]"},
      {R"("include": [5])", "include[0]"},
      {R"("include": "reasoning.encrypted_content")", "include"},
      {R"("reasoning": {"summary": "detailed"})", "reasoning.summary"},
      {R"("reasoning": {"generate_summary": "concise"})", "reasoning.generate_summary"},
      {R"("truncation": "auto")", "truncation"},
  };
  for (const auto& [more, field] : cases) {
    try {
      parse_responses_request(with_input(more));
      ADD_FAILURE() << "accepted: " << more;
    } catch (const FrontError& error) {
      EXPECT_EQ(error.field(), field) << error.what();
    }
  }
}

}  // namespace
}  // namespace ete::front
