#include "services/worker/wire.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>

#include "engine/base/error.h"
#include "services/worker/status.h"

namespace ete::worker {
namespace {

using testing::HasSubstr;

constexpr ModelLimits kLimits{.vocab_size = 100, .context = 50};

struct BadMessage {
  const char* text;
  const char* names;  // what the error must say
  ErrorCode code = ErrorCode::invalid_argument;
};

template <typename Message>
Message parse(const char* text) {
  Message message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return message;
}

TEST(Wire, AnOpenThatSkipsThePrefixCache) {
  EXPECT_TRUE(
      to_open_request(parse<v1::Open>("request_id: 'r' skip_prefix_cache: true"), kLimits).skip_prefix_cache);
  EXPECT_FALSE(to_open_request(parse<v1::Open>("request_id: 'r'"), kLimits).skip_prefix_cache);
}

class BadStep : public testing::TestWithParam<BadMessage> {};

TEST_P(BadStep, IsRefusedNamingTheField) {
  const auto step = parse<v1::Step>(GetParam().text);
  try {
    (void)to_step_request(step, kLimits);
    FAIL() << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().names));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadStep,
    testing::Values(
        BadMessage{"position: -1 ids: 1", "step.position: -1"}, BadMessage{"position: 0", "step.ids"},
        BadMessage{"position: 50 ids: 1", "position 50", ErrorCode::resource_exhausted},
        BadMessage{"position: 9223372036854775807 ids: 1", "9223372036854775807",
                   ErrorCode::resource_exhausted},
        BadMessage{"ids: 1 ids: 100", "step.ids[1]: 100"}, BadMessage{"ids: -1", "step.ids[0]: -1"},
        BadMessage{"ids: 1 n_draft: 1", "step.n_draft: 1"},
        BadMessage{"ids: 1 n_draft: -1", "step.n_draft: -1"},
        BadMessage{"ids: 1 wanted { top_k: 101 }", "step.wanted.top_k: 101"},
        BadMessage{"ids: 1 wanted { top_k: -1 }", "step.wanted.top_k: -1"},
        BadMessage{"ids: 1 wanted { temperature: 0 }", "step.wanted.temperature"},
        BadMessage{"ids: 1 wanted { temperature: -1 }", "step.wanted.temperature"},
        BadMessage{"ids: 1 wanted { temperature: nan }", "step.wanted.temperature"},
        BadMessage{"ids: 1 wanted { temperature: inf }", "step.wanted.temperature"},
        BadMessage{"ids: 1 wanted { extra_ids: 5 extra_ids: 100 }", "step.wanted.extra_ids[1]: 100"},
        BadMessage{"ids: 1 wanted { allowed_mask: '123456789012' }", "step.wanted.allowed_mask: 12 bytes"},
        BadMessage{"ids: 1 wanted { allowed_mask: '12345678901234' }", "takes 13"},
        BadMessage{"ids: 1 wanted { allowed_mask: '\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\360' }",
                   "no id is allowed"}));

class BadOpen : public testing::TestWithParam<BadMessage> {};

TEST_P(BadOpen, IsRefusedNamingTheField) {
  const auto open = parse<v1::Open>(GetParam().text);
  try {
    (void)to_open_request(open, kLimits);
    FAIL() << GetParam().text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), GetParam().code);
    EXPECT_THAT(error.what(), HasSubstr(GetParam().names));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadOpen,
    testing::Values(
        BadMessage{"", "open.request_id"}, BadMessage{"request_id: 'a\\n'", "open.request_id"},
        BadMessage{"request_id: '\\303\\251'", "printable"},
        BadMessage{"request_id: 'a' prompt_ids: 100", "open.prompt_ids[0]: 100"},
        BadMessage{"request_id: 'a' fork_of { }", "open.fork_of.session"},
        BadMessage{"request_id: 'a' fork_of { session: 1 length: -1 }", "open.fork_of.length: -1"},
        BadMessage{"request_id: 'a' fork_of { session: 1 length: 51 }", "open.fork_of.length: 51"},
        BadMessage{"request_id: 'a' wanted { top_k: 101 }", "open.wanted.top_k: 101"}));

TEST(Wire, RequestIdHasALongest) {
  v1::Open open;
  open.set_request_id(std::string(128, 'a'));
  EXPECT_EQ(to_open_request(open, kLimits).request_id.size(), 128u);
  open.set_request_id(std::string(129, 'a'));
  EXPECT_THROW((void)to_open_request(open, kLimits), Error);
}

TEST(Wire, CacheSaltHasALongest) {
  v1::Open open;
  open.set_request_id("a");
  open.set_cache_salt(std::string(1024, 's'));
  EXPECT_EQ(to_open_request(open, kLimits).cache_salt.size(), 1024u);
  open.set_cache_salt(std::string(1025, 's'));
  try {
    (void)to_open_request(open, kLimits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("open.cache_salt: 1025 bytes; accepted: at most 1024"));
  }
}

TEST(Wire, PromptLongerThanTheContextIsResourceExhausted) {
  v1::Open open;
  open.set_request_id("a");
  for (int i = 0; i < 51; ++i) open.add_prompt_ids(1);
  try {
    (void)to_open_request(open, kLimits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), HasSubstr("open.prompt_ids: 51"));
  }
}

TEST(Wire, UnknownRowsAreRefused) {
  v1::Step step;
  step.add_ids(1);
  step.mutable_wanted()->set_rows(static_cast<v1::Wanted::Rows>(7));
  try {
    (void)to_step_request(step, kLimits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step.wanted.rows: 7"));
  }
}

TEST(Wire, BoundsAreInclusive) {
  const auto step = parse<v1::Step>("position: 49 ids: 99 wanted { top_k: 100 extra_ids: 0 extra_ids: 99 }");
  EXPECT_EQ(to_step_request(step, kLimits).wanted.top_k, 100);
  const auto drafts = parse<v1::Step>("ids: 1 ids: 2 ids: 3 n_draft: 2");
  EXPECT_EQ(to_step_request(drafts, kLimits).n_draft, 2);
}

TEST(Wire, BitsPastTheVocabularyAreIgnored) {
  v1::Step step;
  step.add_ids(1);
  step.mutable_wanted()->set_allowed_mask(std::string(13, '\xff'));
  const StepRequest request = to_step_request(step, kLimits);
  ASSERT_EQ(request.wanted.allowed_mask.size(), 2u);
  EXPECT_EQ(request.wanted.allowed_mask[0], ~uint64_t{0});
  EXPECT_EQ(request.wanted.allowed_mask[1], (uint64_t{1} << 36) - 1);
}

TEST(Wire, RepliesThatWouldBeTooLargeAreRefused) {
  const ModelLimits limits{.vocab_size = 250'000, .context = 1000};
  v1::Step step;
  for (int i = 0; i < 60; ++i) step.add_ids(1);
  step.mutable_wanted()->set_full_row(true);
  step.mutable_wanted()->set_rows(v1::Wanted::ALL);
  EXPECT_EQ(to_step_request(step, limits).rows, WantedRows::all);
  for (int i = 0; i < 10; ++i) step.add_ids(1);
  try {
    (void)to_step_request(step, limits);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("step.wanted: 70 rows"));
  }
  step.mutable_wanted()->set_rows(v1::Wanted::LAST);
  EXPECT_EQ(to_step_request(step, limits).rows, WantedRows::last);
}

TEST(Wire, ResultsKeepEveryFigure) {
  ete::StepResult result;
  result.position = 7;
  result.length = 9;
  result.reused_tokens = 3;
  result.timings = {1.5, 2.5, 4, 2};
  LogitsRow row;
  row.top_ids = {3, 1};
  row.top_logits = {2.5f, -1.0f};
  row.extra_logits = {0.25f};
  row.logsumexp = 3.5f;
  row.max_logit = 2.5f;
  row.full = {1.0f, -std::numeric_limits<float>::infinity()};
  result.rows = {row, LogitsRow{}};
  const v1::StepResult message = to_reply(result).step_result();
  EXPECT_EQ(message.position(), 7);
  EXPECT_EQ(message.length(), 9);
  EXPECT_EQ(message.reused_tokens(), 3);
  EXPECT_EQ(message.timings().queued_ms(), 1.5);
  EXPECT_EQ(message.timings().compute_ms(), 2.5);
  EXPECT_EQ(message.timings().passes(), 4);
  EXPECT_EQ(message.timings().rows(), 2);
  ASSERT_EQ(message.rows_size(), 2);
  EXPECT_THAT(message.rows(0).top_ids(), testing::ElementsAre(3, 1));
  EXPECT_THAT(message.rows(0).top_logits(), testing::ElementsAre(2.5f, -1.0f));
  EXPECT_THAT(message.rows(0).extra_logits(), testing::ElementsAre(0.25f));
  EXPECT_EQ(message.rows(0).logsumexp(), 3.5);
  EXPECT_EQ(message.rows(0).max_logit(), 2.5f);
  EXPECT_EQ(message.rows(0).full_row(), std::string("\x00\x00\x80\x3f\x00\x00\x80\xff", 8));
}

TEST(Status, EveryErrorHasItsCode) {
  EXPECT_EQ(status_code(ErrorCode::invalid_argument), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status_code(ErrorCode::not_found), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status_code(ErrorCode::unsupported), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(status_code(ErrorCode::corrupt), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(status_code(ErrorCode::resource_exhausted), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status_code(ErrorCode::failed_precondition), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status_code(ErrorCode::cancelled), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(status_code(ErrorCode::unavailable), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status_code(ErrorCode::internal), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(to_status(Error(ErrorCode::corrupt, "a\xff\nb")).error_message(), "a? b");
}

TEST(ToStepRequest, TakesAtMost63Drafts) {
  v1::Step step;
  step.mutable_ids()->Resize(65, 1);
  step.set_n_draft(63);
  const ModelLimits limits{.vocab_size = 100, .context = 100};
  EXPECT_EQ(to_step_request(step, limits).n_draft, 63);
  step.set_n_draft(64);
  try {
    (void)to_step_request(step, limits);
    FAIL() << "64 drafts";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("step.n_draft: 64 is not in [0, 63]"));
  }
}

}  // namespace
}  // namespace ete::worker
