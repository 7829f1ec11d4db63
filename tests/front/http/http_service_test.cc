// The HTTP door of a front beside its gRPC door, and a toy worker behind both.
#include <gtest/gtest.h>

#include "tests/front/front_fixture.h"
#include "tests/front/http/http_client.h"

namespace ete::front {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;

class HttpServiceTest : public FrontFixture {
 protected:
  void start_front_with_http(FrontServer::Options options) {
    options.http = {service::parse_address("127.0.0.1:0"), {}};
    start_front(options);
  }
  void start_with_http(ToyWorker::Options options) {
    start_unready_with_http(std::move(options));
    ASSERT_TRUE(eventually([&] { return healthy(); }));
  }
  void start_unready_with_http(ToyWorker::Options options) {
    worker_ = std::make_unique<ToyWorker>(std::move(options));
    start_front_with_http(front_options());
  }
  int port() const { return front_->http_address().port; }
  std::string get(const std::string& path) {
    HttpClient client(port());
    return client.ask("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n").body;
  }
  // Whether clients are told where files of this machine are.
  bool tells_files(const std::string& text) const { return text.find(dir_.file("")) != std::string::npos; }
  Json status() { return Json::parse(get("/status")); }
  Json post(const std::string& path, const Json& body, int status = 200) {
    HttpClient client(port());
    const HttpAnswer answer = client.ask(HttpClient::post(path, body.dump()));
    EXPECT_EQ(answer.status, status) << answer.body;
    return answer.json();
  }
  // The body of a stream whose worker goes away once this has come.
  std::string body_without_worker(const std::string& path, const Json& body, const std::string& seen) {
    HttpClient client(port());
    client.send(HttpClient::post(path, body.dump()));
    EXPECT_TRUE(client.wait_for(seen));
    worker_.reset();
    return client.read().body;
  }
};

TEST_F(HttpServiceTest, SaysWhatGenerateSays) {
  ToyWorker::Options options = worker_options();
  options.chat_template = "<bos>{% for m in messages %}{{ m.content }}{% endfor %}";
  start_with_http(options);
  v1::GenerateRequest request = request_for("hello", 20);
  request.mutable_sampling()->set_temperature(0.75);
  request.mutable_sampling()->set_frequency_penalty(0.5);
  request.mutable_stopping()->add_stop("zz");
  const std::string text = generate(request).text();
  ASSERT_FALSE(text.empty());
  Json body = {
      {"seed", 7}, {"max_tokens", 20}, {"temperature", 0.75}, {"frequency_penalty", 0.5}, {"stop", "zz"}};
  body["prompt"] = "hello";
  EXPECT_EQ(post("/v1/completions", body)["choices"][0]["text"], text);
  body.erase("prompt");
  body["messages"] = Json::array({Json{{"role", "user"}, {"content", "hello"}}});
  EXPECT_EQ(post("/v1/chat/completions", body)["choices"][0]["message"]["content"], text);
}

TEST_F(HttpServiceTest, AClientThatGoesFreesItsSessions) {
  ToyWorker::Options options = worker_options();
  options.context = 100'000;
  options.step_time = milliseconds(5);
  start_with_http(options);
  for (const bool stream : {true, false}) {
    HttpClient client(port());
    client.send(
        HttpClient::post("/v1/completions",
                         Json{{"prompt", "x"}, {"max_tokens", 90'000}, {"n", 3}, {"stream", stream}}.dump()));
    ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 3; }));
    client.close();
    EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }, std::chrono::seconds(5)));
  }
}

TEST_F(HttpServiceTest, ChoicesBeginWhenTheirPromptIsComputed) {
  ToyWorker::Options options = worker_options();
  options.context = 100'000;
  options.step_time = milliseconds(300);
  start_with_http(options);
  HttpClient client(port());
  client.send(HttpClient::post(
      "/v1/completions", Json{{"prompt", Json::array({"x", "y"})}, {"max_tokens", 90'000}, {"n", 3}}.dump()));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 2; }));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(worker_->live_sessions(), 2);
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 6; }));
}

TEST_F(HttpServiceTest, AClientThatDoesNotReadPausesAndLosesItsSession) {
  most_unread_ = milliseconds(1500);
  ToyWorker::Options options = worker_options();
  options.context = 1'000'000;
  start_with_http(options);
  HttpClient client(port(), 4096);
  client.send(HttpClient::post(
      "/v1/completions",
      Json{{"prompt", "x"}, {"max_tokens", 900'000}, {"logprobs", 100}, {"stream", true}}.dump()));
  ASSERT_TRUE(eventually([&] { return worker_->live_sessions() == 1; }));
  // Paused: the steps cease while the session is still there.
  int steps = -1;
  EXPECT_TRUE(eventually([&] {
    const int before = std::exchange(steps, worker_->steps());
    std::this_thread::sleep_for(milliseconds(100));
    return worker_->live_sessions() == 1 && before == steps;
  }));
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }));
}

TEST_F(HttpServiceTest, ChoicesThatCanNeverRunTogetherAreRefused) {
  most_requests_ = 8;
  ToyWorker::Options options = worker_options();
  options.plan_json = R"({"max_sessions": 1, "max_queued": 4})";
  start_with_http(options);
  const auto refused = [&](const Json& body) {
    const Json error = post("/v1/completions", body, 400)["error"];
    return error["param"].get<std::string>() + ": " + error["message"].get<std::string>();
  };
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"n", 5}})["choices"].size(), 5u);
  EXPECT_NE(refused({{"prompt", "x"}, {"n", 6}}).find("n: n: 6 choices"), std::string::npos);
  EXPECT_NE(refused({{"prompt", "x"}, {"n", 6}}).find("at most 5 together"), std::string::npos);
  EXPECT_NE(refused({{"prompt", {"a", "b", "c"}}, {"n", 2}}).find("--max-queued"), std::string::npos);
  EXPECT_NE(refused({{"prompt", "x"}, {"n", 9}}).find("--max-requests"), std::string::npos);
}

TEST_F(HttpServiceTest, AReaderThatPausesGetsEverything) {
  ToyWorker::Options options = worker_options();
  options.context = 100'000;
  start_with_http(options);
  HttpClient client(port(), 4096);
  client.send(HttpClient::post(
      "/v1/completions",
      Json{{"prompt", "x"}, {"max_tokens", 3000}, {"logprobs", 100}, {"seed", 3}, {"stream", true}}.dump()));
  ASSERT_TRUE(client.wait_for("data: "));
  std::this_thread::sleep_for(milliseconds(500));
  const HttpAnswer answer = client.read();
  size_t events = 0;
  for (size_t at = answer.body.find("data: {"); at != std::string::npos;
       at = answer.body.find("data: {", at + 1)) {
    ++events;
  }
  EXPECT_EQ(events, 3001u);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n"));
}

TEST_F(HttpServiceTest, WithoutItsWorkerItSaysSo) {
  start_front_with_http(front_options());
  HttpClient client(port());
  const HttpAnswer health = client.ask("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json()["error"]["code"], "unavailable");
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}}, 503)["error"]["type"], "server_error");
}

TEST_F(HttpServiceTest, ClientsAreNotToldWhereItsFilesAre) {
  ToyWorker::Options here = worker_options(), away = worker_options();
  here.context = 100'000;
  here.step_time = milliseconds(5);
  away.path = dir_.file("an other");
  worker_ = std::make_unique<ToyWorker>(here);
  FrontServer::Options options = front_options();
  options.workers.workers = parse_workers("unix:" + here.path + ",unix:" + away.path);
  start_front_with_http(options);
  ASSERT_TRUE(eventually([&] { return healthy(); }));
  const Json workers = status()["workers"];
  EXPECT_EQ(workers[0]["worker"], "socket 1");
  EXPECT_EQ(workers[1]["worker"], "socket 2");
  EXPECT_FALSE(tells_files(get("/metrics")));
  EXPECT_FALSE(tells_files(workers.dump())) << workers.dump(1);
  EXPECT_NE(workers[1]["why"].get<std::string>().find("the worker at socket 2: "), std::string::npos);
  const std::string body = body_without_worker(
      "/v1/completions", {{"prompt", "x"}, {"max_tokens", 90'000}, {"stream", true}}, "data: ");
  EXPECT_NE(body.find("the worker at socket 1"), std::string::npos) << body;
  EXPECT_FALSE(tells_files(body)) << body;
  for (const char* path : {"/health", "/v1/models", "/status", "/metrics"}) {
    EXPECT_FALSE(tells_files(get(path))) << path << ": " << get(path);
  }
  const std::string message = generate(request_for("x", 1)).status.error_message();
  EXPECT_NE(message.find("the worker at socket 1"), std::string::npos) << message;
  EXPECT_FALSE(tells_files(message)) << message;
}

TEST_F(HttpServiceTest, AStreamedResponseThatFailsEndsAsOpenAIsDoes) {
  ToyWorker::Options options = worker_options();
  options.context = 100'000;
  options.step_time = milliseconds(5);
  options.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}";
  start_with_http(options);
  const std::string body =
      body_without_worker("/v1/responses", {{"input", "x"}, {"max_output_tokens", 90'000}, {"stream", true}},
                          "response.output_text.delta");
  const size_t error = body.find("event: error\n"), failed = body.find("event: response.failed\n");
  ASSERT_NE(error, std::string::npos) << body.substr(body.size() - std::min<size_t>(body.size(), 500));
  ASSERT_NE(failed, std::string::npos);
  EXPECT_LT(error, failed);
  const auto data = [&](size_t at) {
    const size_t begin = body.find("data: ", at) + 6;
    return Json::parse(body.substr(begin, body.find('\n', begin) - begin));
  };
  EXPECT_EQ(data(error)["code"], "unavailable");
  EXPECT_EQ(data(error)["sequence_number"].get<int>() + 1, data(failed)["sequence_number"]);
  EXPECT_EQ(data(failed)["response"]["status"], "failed");
  EXPECT_EQ(data(failed)["response"]["error"]["code"], "server_error");
  EXPECT_EQ(data(failed)["response"]["output"][0]["status"], "incomplete");
  EXPECT_EQ(body.find("event: ", failed + 1), std::string::npos);
}

TEST_F(HttpServiceTest, StatusSaysServingOnlyWhenRequestsAreServed) {
  ToyWorker::Options options = worker_options();
  options.model_time = milliseconds(500);
  start_unready_with_http(options);
  ASSERT_TRUE(eventually([&] { return status()["state"] != "away"; }));
  EXPECT_EQ(status()["state"], "loading");
  ASSERT_TRUE(eventually([&] { return status()["state"] == "serving"; }));
  EXPECT_TRUE(healthy());
}

TEST_F(HttpServiceTest, AModelThatOneOfTheWorkersHasYetToTellIsWaitedFor) {
  ToyWorker::Options small = worker_options(), large = worker_options();
  small.name = "small";
  large.name = "large";
  large.path = dir_.file("large");
  large.model_time = milliseconds(2000);
  worker_ = std::make_unique<ToyWorker>(small);
  const ToyWorker other(large);
  FrontServer::Options options = front_options();
  options.workers.workers = parse_workers("unix:" + small.path + ",unix:" + large.path);
  start_front_with_http(options);
  const auto states = [&] {
    const Json all = status();
    return Json::array({all["state"], all["workers"][0]["state"], all["workers"][1]["state"]});
  };
  EXPECT_TRUE(eventually([&] { return states() == Json::array({"serving", "serving", "loading"}); }));
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"model", "small"}})["model"], "small");
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"model", "large"}})["model"], "large");
  EXPECT_EQ(states(), Json::array({"serving", "serving", "serving"}));
  v1::GenerateRequest request = request_for("x", 1);
  request.set_model("large");
  const Outcome outcome = generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.replies[0].prompt().model(), "large");
  EXPECT_EQ(post("/v1/completions", {{"prompt", "x"}, {"model", "huge"}}, 404)["error"]["param"], "model");
}

TEST_F(HttpServiceTest, AModelIsListedByNameAndWithTheTimeOfItsLoad) {
  start_with_http(worker_options());
  const std::string all = get("/v1/models");
  const Json first = Json::parse(all)["data"][0];
  EXPECT_EQ(Json::parse(get("/v1/models/"))["error"]["code"], "not_found");
  std::this_thread::sleep_for(milliseconds(1100));
  EXPECT_EQ(get("/v1/models"), all);
  EXPECT_EQ(Json::parse(get("/v1/models/" + first["id"].get<std::string>())), first);
}

TEST_F(HttpServiceTest, ShutdownEndsWhatRuns) {
  ToyWorker::Options options = worker_options();
  options.context = 100'000;
  options.step_time = milliseconds(5);
  start_with_http(options);
  HttpClient client(port());
  client.send(HttpClient::post("/v1/completions",
                               Json{{"prompt", "x"}, {"max_tokens", 90'000}, {"stream", true}}.dump()));
  ASSERT_TRUE(client.wait_for("data: "));
  front_->shutdown(milliseconds(100));
  EXPECT_TRUE(eventually([&] { return worker_->live_sessions() == 0; }));
}

}  // namespace
}  // namespace ete::front
