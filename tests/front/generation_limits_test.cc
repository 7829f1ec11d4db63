// What clients cannot do to each other: long texts, large messages, replies that nobody reads.
#include <fstream>
#include <sstream>

#include "tests/front/front_fixture.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

class GenerationLimitsTest : public FrontFixture {
 protected:
  // A tokenizer that takes a microsecond and more for a byte of a long word.
  static std::string slow_tokenizer() {
    std::ifstream file(ETE_SOURCE_DIR "/tests/golden/tokenizers/bpe_gpt2/tokenizer.json");
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static v1::GenerateRequest request_of_ids(int max_tokens) {
    v1::GenerateRequest request = request_for("", max_tokens);
    request.mutable_tokens()->add_ids('a');
    return request;
  }
  grpc::Status tokenize(const std::string& text, v1::TokenizeReply* reply = nullptr) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeReply ignored;
    return stub_->Tokenize(&context, request, reply == nullptr ? &ignored : reply);
  }
  grpc::Status detokenize(int count, int32_t id, v1::DetokenizeReply* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    v1::DetokenizeRequest request;
    request.mutable_ids()->Resize(count, id);
    return stub_->Detokenize(&context, request, reply);
  }
};

// Clients that send texts of megabytes and are gone long before these are tokenized.
class LongTexts {
 public:
  LongTexts(v1::Generation::Stub& stub, int count, size_t bytes) {
    v1::GenerateRequest request;
    request.set_text(std::string(bytes, ' '));
    for (int i = 0; i < count; ++i) {
      clients_.emplace_back([this, &stub, request] {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + seconds(1));
        const auto reader = stub.Generate(&context, request);
        v1::GenerateReply reply;
        while (reader->Read(&reply)) {
        }
        reader->Finish();
        ++ended_;
      });
    }
  }
  int ended() const { return ended_; }

 private:
  std::atomic<int> ended_{0};
  std::vector<std::jthread> clients_;
};

TEST_F(GenerationLimitsTest, LongTextsHoldUpNobodyElse) {
  ToyWorker::Options options = worker_options();
  options.tokenizer_json = slow_tokenizer();
  options.context = 1 << 20;
  options.step_time = milliseconds(5);
  start(options);
  std::atomic<bool> stop{false};
  Clock::duration longest_pause{};
  std::jthread stream([&] {
    Clock::time_point last = Clock::now();
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request_of_ids(1 << 19));
    for (v1::GenerateReply reply; !stop && reader->Read(&reply); last = Clock::now()) {
      longest_pause = std::max(longest_pause, Clock::now() - last);
    }
    longest_pause = std::max(longest_pause, Clock::now() - last);
    context.TryCancel();
    reader->Finish();
  });
  ASSERT_TRUE(eventually([&] { return worker_->steps() > 10; }));
  const LongTexts long_texts(*stub_, 16, 2'000'000);
  std::this_thread::sleep_for(milliseconds(300));
  // A short text, and one that is not tokenized at once, go past them.
  const Clock::time_point asked = Clock::now();
  EXPECT_TRUE(tokenize("hello").ok());
  std::string words;
  while (words.size() < 20'000) words += "some words ";
  EXPECT_TRUE(tokenize(words).ok());
  EXPECT_LT(Clock::now() - asked, seconds(2));
  EXPECT_TRUE(eventually([&] { return long_texts.ended() == 16; }));
  stop = true;
  stream.join();
  EXPECT_LT(longest_pause, seconds(2));
}

TEST_F(GenerationLimitsTest, ATextThatCannotFitIsRefusedBeforeItIsTokenized) {
  ToyWorker::Options options = worker_options();
  options.tokenizer_json = slow_tokenizer();
  start(options);
  const Clock::time_point asked = Clock::now();
  v1::GenerateRequest request = request_for(std::string(4'000'000, ' '), 1);
  const Outcome outcome = generate(request);
  EXPECT_EQ(outcome.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(outcome.status.error_message().find("text: 4000000 bytes"), std::string::npos)
      << outcome.status.error_message();
  EXPECT_NE(outcome.status.error_message().find("context of 64"), std::string::npos)
      << outcome.status.error_message();
  EXPECT_LT(Clock::now() - asked, seconds(2));
}

TEST_F(GenerationLimitsTest, TextsToTokenizeAndIdsToDetokenizeAreBounded) {
  start(worker_options());
  v1::TokenizeReply ids;
  EXPECT_TRUE(tokenize(std::string(1 << 20, 'x'), &ids).ok());
  EXPECT_EQ(ids.ids_size(), (1 << 20) + 1);
  const grpc::Status long_text = tokenize(std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(long_text.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(long_text.error_message().find("text: 1048577 bytes"), std::string::npos)
      << long_text.error_message();

  v1::DetokenizeReply text;
  EXPECT_TRUE(detokenize((1 << 20) + 64, 'x', &text).ok());
  EXPECT_EQ(text.text().size(), size_t{(1 << 20) + 64});
  const grpc::Status many = detokenize((1 << 20) + 65, 'x', &text);
  EXPECT_EQ(many.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(many.error_message().find("ids: 1048641 ids"), std::string::npos) << many.error_message();
  const grpc::Status large = detokenize(1'000'000, 256, &text);  // "<bos>"
  EXPECT_EQ(large.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_NE(large.error_message().find("5000000 bytes"), std::string::npos) << large.error_message();
}

TEST_F(GenerationLimitsTest, LargeMessagesAreRefused) {
  start(worker_options());
  v1::GenerateRequest request = request_for(std::string(5 << 20, 'x'), 1);
  EXPECT_EQ(generate(request).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GenerationLimitsTest, OneConnectionCarriesABoundedNumberOfStreams) {
  constexpr int kMost = 128;
  ToyWorker::Options options = worker_options();
  options.step_time = milliseconds(1'500);
  start(options);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateReply>>> readers;
  for (int i = 0; i < kMost + 20; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(stub_->Generate(contexts.back().get(), request_of_ids(1)));
  }
  int most = 0;
  EXPECT_TRUE(eventually([&] {
    most = std::max(most, worker_->live_sessions());
    return worker_->steps() == kMost + 20;
  }));
  EXPECT_LE(most, kMost);
  for (auto& reader : readers) {
    v1::GenerateReply reply;
    while (reader->Read(&reply)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
  }
}

// A client that asks for megabytes and takes in what it does not read no further than it must.
struct SlowReader {
  static constexpr int kTokens = 2000;
  SlowReader(const std::string& front, v1::GenerateRequest request) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 64 << 10);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub = v1::Generation::NewStub(
        grpc::CreateCustomChannel(front, grpc::InsecureChannelCredentials(), arguments));
    request.mutable_stopping()->set_max_tokens(kTokens);
    request.mutable_logprobs()->set_top(300);  // 2 KB a token
    reader = stub->Generate(&context, request);
  }
  // Reads what there is.
  grpc::Status drain() {
    v1::GenerateReply reply;
    while (reader->Read(&reply)) tokens += reply.piece().ids_size();
    return reader->Finish();
  }

  std::unique_ptr<v1::Generation::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader;
  int tokens = 0;
};

TEST_F(GenerationLimitsTest, AClientThatReadsNothingLosesItsSessionAndThenItsCall) {
  most_unread_ = milliseconds(1500);
  ToyWorker::Options options = worker_options();
  options.context = 4096;
  start(options);
  const std::string front = "unix:" + dir_.file("front");
  SlowReader late(front, request_of_ids(1)), never(front, request_of_ids(1));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 2; }));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }));
  // It still gets what was generated, and is told why there is no more.
  const grpc::Status told = late.drain();
  EXPECT_EQ(told.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << told.error_message();
  EXPECT_NE(told.error_message().find("1.5 seconds"), std::string::npos) << told.error_message();
  EXPECT_GT(late.tokens, 10);
  EXPECT_LT(late.tokens, SlowReader::kTokens);
  std::this_thread::sleep_for(milliseconds(2500));
  EXPECT_EQ(never.drain().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(generate(request_for("y", 5)).status.ok());
}

// A refusal is still told after the worker was away for a moment.
TEST_F(GenerationLimitsTest, ARefusedModelsReasonOutlivesAPause) {
  ToyWorker::Options options = worker_options();
  options.wrong_digest = true;
  worker_ = std::make_unique<ToyWorker>(options);
  start_front();
  const auto told = [&](const std::string& what) {
    return eventually(
        [&] { return generate(request_for("x", 1)).status.error_message().find(what) != std::string::npos; },
        seconds(5));
  };
  ASSERT_TRUE(told("SHA-256"));
  worker_->set_loading(true);
  ASSERT_TRUE(told("loading"));
  worker_->set_loading(false);
  EXPECT_TRUE(told("SHA-256")) << generate(request_for("x", 1)).status.error_message();
  EXPECT_FALSE(healthy());
}

}  // namespace
}  // namespace ete::front
