#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "services/front/validation.h"
#include "tests/front/wrong_generates.h"

namespace ete::front {
namespace {

using Request = v1::GenerateRequest;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

ServedModel byte_model() {
  ServedModel model;
  model.name = "toy";
  model.vocab_size = 300;
  model.context = 64;
  model.longest_token_bytes = 5;
  GgufVocabulary vocabulary;
  vocabulary.model = "bytes";
  model.tokenizer = tokenizer_from_gguf(vocabulary);
  return model;
}

// All that happens to a request before it is sent to the worker.
GenerationRequest accept(const Request& request, const ServedModel& model) {
  GenerationRequest valid = validate(request, model);
  if (request.has_text()) valid.prompt_ids = encode_prompt(request, model);
  return valid;
}

class WrongRequest : public ::testing::TestWithParam<WrongGenerate> {};

TEST_P(WrongRequest, IsRefusedByName) {
  Request request;
  request.set_text(std::string("hello"));
  const ServedModel model = byte_model();
  ASSERT_NO_THROW(accept(request, model));
  GetParam().spoil(request);
  try {
    accept(request, model);
    FAIL() << "accepted";
  } catch (const FrontError& error) {
    EXPECT_EQ(error.code(), error.field() == "model" ? FrontErrorCode::unknown_model : GetParam().code);
    for (const char* part : GetParam().message) EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(Table, WrongRequest, ::testing::ValuesIn(wrong_generates()));

TEST(Request, DefaultsAreTheProtocols) {
  Request request;
  request.set_text(std::string("<eos>"));
  const GenerationRequest valid = accept(request, byte_model());
  EXPECT_EQ(valid.prompt_ids, (std::vector<int32_t>{256, '<', 'e', 'o', 's', '>'}));
  EXPECT_EQ(valid.sampling.temperature, 1);
  EXPECT_EQ(valid.sampling.top_k, 0);
  EXPECT_EQ(valid.sampling.top_p, 1);
  EXPECT_EQ(valid.sampling.min_p, 0);
  EXPECT_EQ(valid.sampling.repetition_penalty, 1);
  EXPECT_FALSE(valid.max_tokens);
  EXPECT_FALSE(valid.logprobs);
  EXPECT_FALSE(valid.ignore_eos);
  EXPECT_EQ(valid.request_id.size(), 32u);
  EXPECT_NE(valid.sampling.seed, validate(request, byte_model()).sampling.seed);
}

TEST(Request, EdgesOfTheRangesAreAccepted) {
  Request request;
  request.set_request_id(std::string("!~ "));
  request.set_model(std::string("toy"));
  request.set_text(std::string("a<eos>"));
  request.set_add_special(false);
  request.set_parse_special(true);
  v1::Sampling& sampling = *request.mutable_sampling();
  sampling.set_temperature(0);
  sampling.set_top_p(1);
  sampling.set_min_p(1);
  sampling.set_presence_penalty(-2);
  sampling.set_frequency_penalty(2);
  sampling.set_seed(0);
  (*sampling.mutable_logit_bias())[299] = -kInfinity;
  for (int32_t id = 20; id >= 0; --id) (*sampling.mutable_logit_bias())[id] = 3;
  request.mutable_stopping()->set_max_tokens(0);
  request.mutable_stopping()->add_stop(std::string(1024, '\xff'));
  request.mutable_logprobs();
  const GenerationRequest valid = accept(request, byte_model());
  EXPECT_EQ(valid.prompt_ids, (std::vector<int32_t>{'a', 257}));
  EXPECT_EQ(valid.sampling.temperature, 0);
  EXPECT_EQ(valid.sampling.seed, 0u);
  EXPECT_EQ(valid.sampling.logit_bias.size(), 22u);
  EXPECT_TRUE(std::is_sorted(valid.sampling.logit_bias.begin(), valid.sampling.logit_bias.end()));
  EXPECT_EQ(valid.sampling.logit_bias.back().second, -kInfinity);
  EXPECT_EQ(valid.max_tokens, 0);
  EXPECT_EQ(valid.logprobs, 0);
}

TEST(Request, ATextOfMoreBytesThanTheContextsTokensHaveIsNotTokenized) {
  Request request;
  request.set_text(std::string(5 * 64, 'x'));
  EXPECT_NO_THROW(validate(request, byte_model()));
  request.mutable_text()->push_back('x');
  try {
    validate(request, byte_model());
    FAIL() << "accepted";
  } catch (const FrontError& error) {
    EXPECT_EQ(error.code(), FrontErrorCode::context_exceeded);
    for (const char* part : {"text", "321 bytes", "320", "context of 64"}) {
      EXPECT_THAT(error.what(), HasSubstr(part));
    }
  }
}

TEST(Request, DetokenizeKnowsTheVocabulary) {
  v1::DetokenizeRequest request;
  request.add_ids(299);
  EXPECT_EQ(validate(request, byte_model()), (std::vector<int32_t>{299}));
  request.add_ids(300);
  EXPECT_THROW(validate(request, byte_model()), FrontError);
}

}  // namespace
}  // namespace ete::front
