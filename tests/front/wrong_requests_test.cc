// Requests that are wrong, through both doors of a front: each has the right code and a message that names
// its field, and none reaches the worker, as one would whose value was clamped.
#include <gmock/gmock.h>

#include <memory>

#include "tests/front/front_fixture.h"
#include "tests/front/http/http_client.h"
#include "tests/front/wrong_generates.h"

namespace ete::front {
namespace {

using grpc::StatusCode;
using ::testing::HasSubstr;

// Of the HTTP door. A body that is empty is not sent.
struct WrongHttp {
  const char* what;
  const char* path;
  std::string body;
  const char* field;                 // "param" of the error; null: none
  std::vector<const char*> message;  // must all be in it, beside the field
  int status = 400;
  const char* method = "POST";
};
void PrintTo(const WrongHttp& row, std::ostream* out) { *out << row.what; }

// Of the other methods of the gRPC door.
struct WrongCall {
  const char* what;
  const char* method;
  std::string bytes;  // the request
  std::vector<const char*> message;
  StatusCode code = StatusCode::INVALID_ARGUMENT;
};
void PrintTo(const WrongCall& row, std::ostream* out) { *out << row.what; }

std::vector<WrongHttp> wrong_http() {
  const char* const completions = "/v1/completions";
  const char* const chat = "/v1/chat/completions";
  const char* const responses = "/v1/responses";
  const auto with_prompt = [](const std::string& more) { return R"({"prompt": "x", )" + more + "}"; };
  const auto with_messages = [](const std::string& more) {
    return R"({"messages": [{"role": "user", "content": "x"}], )" + more + "}";
  };
  return {
      {"no JSON", completions, "{", nullptr, {"JSON"}},
      {"NaN, which JSON does not have", completions, with_prompt(R"("temperature": NaN)"), nullptr, {"JSON"}},
      {"a list", completions, "[]", nullptr, {"object"}},
      {"a member twice", completions, R"({"prompt": "x", "prompt": "y"})", nullptr, {"prompt"}},
      {"text that is not UTF-8", completions, "{\"prompt\": \"\xff\"}", nullptr, {"UTF-8"}},
      {"half a surrogate", completions, R"({"prompt": "\ud800"})", nullptr, {"JSON"}},
      {"deep JSON", completions, "{\"prompt\": " + std::string(100'000, '['), nullptr, {"deep"}},
      {"no prompt", completions, R"({"seed": 1})", "prompt", {"nothing"}},
      {"prompt that is a number", completions, R"({"prompt": 5})", "prompt", {"5", "string"}},
      {"no prompts", completions, R"({"prompt": []})", "prompt", {"a list of 0"}},
      {"65 prompts",
       completions,
       "{\"prompt\": [\"x\"" +
           [] {
             std::string more;
             for (int i = 0; i < 64; ++i) more += ",\"x\"";
             return more;
           }() +
           "]}",
       "prompt",
       {"65", "64"}},
      {"prompt past the context",
       completions,
       R"({"prompt": ")" + std::string(64, 'x') + "\"}",
       "prompt",
       {"65", "64"}},
      {"token past the vocabulary", completions, R"({"prompt": [1, 300]})", "prompt[1]", {"300", "[0, 300)"}},
      {"negative token", completions, R"({"prompt": [-1]})", "prompt[0]", {"-1", "[0, 300)"}},
      {"token that is no integer", completions, R"({"prompt": [1, 1.5]})", "prompt[1]", {"1.5"}},
      {"token of 64 bits", completions, R"({"prompt": [4294967297]})", "prompt[0]", {"4294967297"}},
      {"unknown model", completions, with_prompt(R"("model": "gpt")"), "model", {"\"gpt\"", "\"toy\""}, 404},
      {"model that is a number", completions, with_prompt(R"("model": 4)"), "model", {"4", "a string"}},
      {"model of a chat in a list", chat, with_messages(R"("model": ["toy"])"), "model", {"a string"}},
      {"unknown field", completions, with_prompt(R"("temprature": 1)"), "temprature", {}},
      {"negative temperature",
       completions,
       with_prompt(R"("temperature": -0.5)"),
       "temperature",
       {"-0.5", "[0, 3.40282e+38]"}},
      {"temperature beyond float",
       completions,
       with_prompt(R"("temperature": 1e300)"),
       "temperature",
       {"[0, 3.40282e+38]"}},
      {"temperature in words",
       completions,
       with_prompt(R"("temperature": "hot")"),
       "temperature",
       {"hot", "number"}},
      {"zero top_p", completions, with_prompt(R"("top_p": 0)"), "top_p", {"0", "(0, 1]"}},
      {"top_p above 1", completions, with_prompt(R"("top_p": 1.5)"), "top_p", {"1.5"}},
      {"top_k below -1", completions, with_prompt(R"("top_k": -2)"), "top_k", {"-2"}},
      {"top_k of 64 bits", completions, with_prompt(R"("top_k": 4294967296)"), "top_k", {"4294967296"}},
      {"min_p above 1", completions, with_prompt(R"("min_p": 1.25)"), "min_p", {"1.25", "[0, 1]"}},
      {"presence penalty above 2",
       completions,
       with_prompt(R"("presence_penalty": 2.5)"),
       "presence_penalty",
       {"2.5"}},
      {"frequency penalty below -2",
       completions,
       with_prompt(R"("frequency_penalty": -3)"),
       "frequency_penalty",
       {"-3"}},
      {"zero repetition penalty",
       completions,
       with_prompt(R"("repetition_penalty": 0)"),
       "repetition_penalty",
       {"0"}},
      {"bias of no id", completions, with_prompt(R"("logit_bias": {"x": 1})"), "logit_bias", {"x"}},
      {"bias past the vocabulary",
       completions,
       with_prompt(R"("logit_bias": {"300": 1})"),
       "logit_bias",
       {"300", "[0, 300)"}},
      {"bias in words", completions, with_prompt(R"("logit_bias": {"5": "much"})"), "logit_bias.5", {"much"}},
      {"negative max_tokens", completions, with_prompt(R"("max_tokens": -2)"), "max_tokens", {"-2"}},
      {"max_tokens of 64 bits",
       completions,
       with_prompt(R"("max_tokens": 4294967297)"),
       "max_tokens",
       {"4294967297"}},
      {"max_tokens that is no integer",
       completions,
       with_prompt(R"("max_tokens": 1.5)"),
       "max_tokens",
       {"1.5"}},
      {"min_tokens above max_tokens",
       completions,
       with_prompt(R"("min_tokens": 9, "max_tokens": 4)"),
       "min_tokens",
       {"9", "4"}},
      {"stop that is a number", completions, with_prompt(R"("stop": [1])"), "stop[0]", {"1", "string"}},
      {"empty stop", completions, with_prompt(R"("stop": [""])"), "stop[0]", {"0 bytes"}},
      {"stop token past the vocabulary",
       completions,
       with_prompt(R"("stop_token_ids": [300])"),
       "stop_token_ids[0]",
       {"300"}},
      {"seed of 65 bits", completions, with_prompt(R"("seed": 36893488147419103232)"), "seed", {}},
      {"no choices", completions, with_prompt(R"("n": 0)"), "n", {"0"}},
      {"too many choices", completions, with_prompt(R"("n": 65)"), "n", {"65", "64"}},
      {"best_of that is not n", completions, with_prompt(R"("best_of": 2)"), "best_of", {"2", "n"}},
      {"negative logprobs", completions, with_prompt(R"("logprobs": -1)"), "logprobs", {"-1"}},
      {"more logprobs than ids",
       completions,
       with_prompt(R"("logprobs": 301)"),
       "logprobs",
       {"301", "[0, 300]"}},
      {"logprobs as chat completions have them",
       completions,
       with_prompt(R"("logprobs": true)"),
       "logprobs",
       {"true", "an integer in [0, 1024] or null", "chat"}},
      {"logprobs in words",
       completions,
       with_prompt(R"("logprobs": "2")"),
       "logprobs",
       {"an integer in [0, 1024]"}},
      {"logprobs of 64 bits",
       completions,
       with_prompt(R"("logprobs": 5000000000)"),
       "logprobs",
       {"an integer in [0, 1024]"}},
      {"a priority in words",
       completions,
       with_prompt(R"("priority": "high")"),
       "priority",
       {"an integer in [-10, 10]"}},
      {"guesses, true or false",
       completions,
       with_prompt(R"("draft_tokens": true)"),
       "draft_tokens",
       {"an integer in [0, 63]"}},
      {"a dry range in words",
       completions,
       with_prompt(R"("dry_multiplier": 1, "dry_range": "all")"),
       "dry_range",
       {"an integer in [1, 65536]"}},
      {"no length that is allowed twice",
       completions,
       with_prompt(R"("dry_multiplier": 1, "dry_allowed_length": 0)"),
       "dry_allowed_length",
       {"0", "an integer in [1, 2147483647]"}},
      {"suffix", completions, with_prompt(R"("suffix": "y")"), "suffix", {}},
      {"options of a stream that is none",
       completions,
       with_prompt(R"("stream_options": {})"),
       "stream_options",
       {"stream"}},
      {"stream in words", completions, with_prompt(R"("stream": "yes")"), "stream", {"yes", "true or false"}},
      {"a priority that there is not",
       completions,
       with_prompt(R"("priority": 11)"),
       "priority",
       {"11", "[-10, 10]"}},
      {"too many guesses",
       completions,
       with_prompt(R"("draft_tokens": 64)"),
       "draft_tokens",
       {"64", "[0, 63]"}},
      {"grammar without root", completions, with_prompt(R"("grammar": "x ::= [a]")"), "grammar", {"root"}},
      {"mirostat beside top_k",
       completions,
       with_prompt(R"("mirostat_tau": 5, "top_k": 3)"),
       "mirostat_tau",
       {"5", "top_k"}},
      {"no messages", chat, R"({"seed": 1})", "messages", {"nothing"}},
      {"empty messages", chat, R"({"messages": []})", "messages", {"a list of 0"}},
      {"unknown role",
       chat,
       R"({"messages": [{"role": "king", "content": "x"}]})",
       "messages[0].role",
       {"king"}},
      {"conversation past the context",
       chat,
       R"({"messages": [{"role": "user", "content": ")" + std::string(70, 'x') + "\"}]}",
       "messages",
       {"64"}},
      {"two limits",
       chat,
       with_messages(R"("max_tokens": 3, "max_completion_tokens": 4)"),
       "max_tokens",
       {"3"}},
      {"negative limit",
       chat,
       with_messages(R"("max_completion_tokens": -4)"),
       "max_completion_tokens",
       {"-4"}},
      {"two rules",
       chat,
       with_messages(R"("response_format": {"type": "json_object"}, "grammar": "root ::= [a]")"),
       "grammar",
       {}},
      {"unknown format",
       chat,
       with_messages(R"("response_format": {"type": "yaml"})"),
       "response_format.type",
       {"yaml"}},
      {"top_logprobs, true or false",
       chat,
       with_messages(R"("logprobs": true, "top_logprobs": true)"),
       "top_logprobs",
       {"true", "an integer in [0, 1024]"}},
      {"top_logprobs alone", chat, with_messages(R"("top_logprobs": 3)"), "top_logprobs", {"3", "logprobs"}},
      {"tool that must be called, of none",
       chat,
       with_messages(R"("tool_choice": "required")"),
       "tool_choice",
       {}},
      {"model of a response, an object", responses, R"({"input": "x", "model": {}})", "model", {"a string"}},
      {"no input", responses, R"({"model": "toy"})", "input", {"nothing"}},
      {"input that is a number", responses, R"({"input": 7})", "input", {"7"}},
      {"negative output",
       responses,
       R"({"input": "x", "max_output_tokens": -2})",
       "max_output_tokens",
       {"-2"}},
      {"two texts to tokenize",
       "/tokenize",
       R"({"prompt": "x", "messages": [{"role": "user", "content": "x"}]})",
       "messages",
       {"beside prompt", "one of them"}},
      {"nothing to tokenize", "/tokenize", "{\"model\": \"toy\"}", "prompt", {"nothing"}},
      {"model to tokenize for", "/tokenize", R"({"prompt": "x", "model": "gpt"})", "model", {"gpt"}, 404},
      {"model to tokenize for, a number",
       "/tokenize",
       R"({"prompt": "x", "model": 5})",
       "model",
       {"5", "a string"}},
      {"model to detokenize for, true or false",
       "/detokenize",
       R"({"tokens": [1], "model": true})",
       "model",
       {"true", "a string"}},
      {"nothing to detokenize", "/detokenize", "{\"model\": \"toy\"}", "tokens", {"nothing"}},
      {"negative id", "/detokenize", R"({"tokens": [-1]})", "tokens[0]", {"-1"}},
      {"id past the vocabulary", "/detokenize", R"({"tokens": [1, 300]})", "tokens[1]", {"300", "[0, 300)"}},
      {"id in words", "/detokenize", R"({"tokens": ["a"]})", "tokens[0]", {"a"}},
      {"model that is not served", "/v1/models/gpt", "", "model", {"gpt", "toy"}, 404, "GET"},
      {"path that is none", "/v1/nothing", "", nullptr, {"/v1/nothing"}, 404, "GET"},
      {"method that is none", completions, "", nullptr, {"DELETE", "POST"}, 405, "DELETE"},
  };
}

template <typename Message>
std::string bytes_of(const std::function<void(Message&)>& fill) {
  Message message;
  fill(message);
  return message.SerializeAsString();
}

std::vector<WrongCall> wrong_calls() {
  using Tokenize = v1::TokenizeRequest;
  using Detokenize = v1::DetokenizeRequest;
  using Render = v1::RenderChatRequest;
  const auto add = [](Render& r, const char* role) {
    r.add_messages()->set_role(role);
    r.mutable_messages()->rbegin()->set_content("x");
  };
  return {
      {"generate what is no message", "Generate", "\x07", {"GenerateRequest", "well formed"}},
      {"generate beyond the message", "Generate", "\x1a\x7fx", {"GenerateRequest", "well formed"}},
      {"text that is not UTF-8",
       "Generate",
       "\x1a\x03"
       "ab\xff",
       {"text", "UTF-8", "2"}},
      {"model that is not UTF-8", "Generate", "\x12\x01\xff", {"model", "UTF-8"}},
      {"grammar that is not UTF-8", "Generate", "\x1a\x01x\x5a\x03\x0a\x01\xff", {"grammar.gbnf", "UTF-8"}},
      {"long text to tokenize",
       "Tokenize",
       bytes_of<Tokenize>([](auto& r) { r.set_text(std::string((1 << 20) + 1, 'x')); }),
       {"text", "1048577 bytes", "1048576"}},
      {"text to tokenize that is not UTF-8", "Tokenize", "\x0a\x01\xff", {"text", "UTF-8"}},
      {"model to tokenize for",
       "Tokenize",
       bytes_of<Tokenize>([](auto& r) { r.set_model("gpt"); }),
       {"model", "\"gpt\"", "\"toy\""}},
      {"negative id",
       "Detokenize",
       bytes_of<Detokenize>([](auto& r) { r.add_ids(-1); }),
       {"ids[0]", "-1", "[0, 300)"}},
      {"id past the vocabulary",
       "Detokenize",
       bytes_of<Detokenize>([](auto& r) {
         r.add_ids(5);
         r.add_ids(300);
       }),
       {"ids[1]", "300", "[0, 300)"}},
      {"ids of large texts",
       "Detokenize",
       bytes_of<Detokenize>([](auto& r) { r.mutable_ids()->Resize(1'000'000, 256); }),
       {"ids", "5000000 bytes", "4194304"}},
      {"ids beyond the message", "Detokenize", "\x0a\x09", {"DetokenizeRequest", "well formed"}},
      {"model that is not served",
       "GetModel",
       bytes_of<v1::GetModelInfoRequest>([](auto& r) { r.set_model("gpt"); }),
       {"model", "\"gpt\"", "\"toy\""}},
      {"no messages", "RenderChat", "", {"messages"}},
      {"unknown role",
       "RenderChat",
       bytes_of<Render>([&](auto& r) { add(r, "king"); }),
       {"messages[0].role", "king"}},
      {"message that is not UTF-8",
       "RenderChat",
       "\x0a\x09\x0a\x04user\x12\x01x\x0a\x03\x12\x01\xff",
       {"messages.content", "UTF-8"}},
      {"model to render for",
       "RenderChat",
       bytes_of<Render>([&](auto& r) {
         add(r, "user");
         r.set_model("gpt");
       }),
       {"model", "\"gpt\"", "\"toy\""}},
      {"session of another model",
       "Snapshot",
       bytes_of<v1::SnapshotRequest>([](auto& r) {
         r.add_ids(1);
         r.set_model("gpt");
       }),
       {"model", "\"gpt\"", "\"toy\""}},
      {"message beyond 4 MiB",
       "Tokenize",
       bytes_of<Tokenize>([](auto& r) { r.set_text(std::string(5 << 20, 'x')); }),
       {"5242"},
       StatusCode::RESOURCE_EXHAUSTED},
  };
}

// One front for all rows.
class WrongRequests : public FrontFixture {
 protected:
  static void SetUpTestSuite() { shared_ = std::make_unique<Shared>(); }
  static void TearDownTestSuite() { shared_.reset(); }

  static int port() { return shared_->port(); }
  static v1::Generation::Stub& stub() { return shared_->stub(); }
  static std::shared_ptr<grpc::Channel> channel() { return shared_->channel(); }
  void TearDown() override {
    EXPECT_TRUE(shared_->reached_worker().empty()) << "a wrong request reached the worker";
  }

 private:
  struct Shared : FrontFixture {
    Shared() {
      ToyWorker::Options options = worker_options();
      options.chat_template = "<bos>{% for m in messages %}{{ m.content }}{% endfor %}";
      worker_ = std::make_unique<ToyWorker>(options);
      FrontServer::Options front = front_options();
      front.http = {service::parse_address("127.0.0.1:0"), {}};
      start_front(front);
      if (!eventually([&] { return healthy(); })) throw std::runtime_error("the front is not healthy");
    }
    ~Shared() override { TearDown(); }
    void TestBody() override {}
    int port() const { return front_->http_address().port; }
    v1::Generation::Stub& stub() const { return *stub_; }
    std::shared_ptr<grpc::Channel> channel() const { return channel_; }
    std::vector<std::string> reached_worker() const { return worker_->request_ids(); }
  };
  static std::unique_ptr<Shared> shared_;
};
std::unique_ptr<WrongRequests::Shared> WrongRequests::shared_;

void expect_in(const std::string& message, const std::vector<const char*>& parts) {
  for (const char* part : parts) EXPECT_THAT(message, HasSubstr(part));
}

class WrongGenerateOverGrpc : public WrongRequests, public ::testing::WithParamInterface<WrongGenerate> {};

TEST_P(WrongGenerateOverGrpc, IsRefusedByName) {
  v1::GenerateRequest request = request_for("hello", 1);
  GetParam().spoil(request);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto reader = stub().Generate(&context, request);
  v1::GenerateReply reply;
  EXPECT_FALSE(reader->Read(&reply)) << reply.ShortDebugString();
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT) << status.error_message();
  expect_in(status.error_message(), GetParam().message);
}

class WrongCallOverGrpc : public WrongRequests, public ::testing::WithParamInterface<WrongCall> {};

TEST_P(WrongCallOverGrpc, IsRefusedByName) {
  grpc::GenericStub generic(channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice slice(GetParam().bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  std::promise<grpc::Status> done;
  generic.UnaryCall(&context, std::string("/ete.v1.Generation/") + GetParam().method, {}, &request, &reply,
                    [&](grpc::Status status) { done.set_value(std::move(status)); });
  const grpc::Status status = done.get_future().get();
  EXPECT_EQ(status.error_code(), GetParam().code) << status.error_message();
  expect_in(status.error_message(), GetParam().message);
}

class WrongOverHttp : public WrongRequests, public ::testing::WithParamInterface<WrongHttp> {};

TEST_P(WrongOverHttp, IsRefusedByName) {
  const WrongHttp& row = GetParam();
  HttpClient client(port());
  const std::string bare = std::string(row.method) + " " + row.path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  const HttpAnswer answer = client.ask(row.body.empty() ? bare : HttpClient::post(row.path, row.body));
  ASSERT_EQ(answer.status, row.status) << answer.body;
  const nlohmann::json error = answer.json()["error"];
  const std::string message = error["message"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["param"], row.field == nullptr ? nlohmann::json(nullptr) : nlohmann::json(row.field))
      << message;
  if (row.field != nullptr) {
    EXPECT_THAT(message, ::testing::StartsWith(row.field));
  }
  expect_in(message, row.message);
}

INSTANTIATE_TEST_SUITE_P(Table, WrongGenerateOverGrpc, ::testing::ValuesIn(wrong_generates()));
INSTANTIATE_TEST_SUITE_P(Table, WrongCallOverGrpc, ::testing::ValuesIn(wrong_calls()));
INSTANTIATE_TEST_SUITE_P(Table, WrongOverHttp, ::testing::ValuesIn(wrong_http()));

TEST(WrongRequestsTable, HasManyRowsForEachDoor) {
  EXPECT_GE(wrong_generates().size() + wrong_calls().size(), 60u);
  EXPECT_GE(wrong_http().size(), 60u);
}

}  // namespace
}  // namespace ete::front
