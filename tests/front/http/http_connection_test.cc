#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "services/front/http/http_server.h"
#include "tests/front/http/http_client.h"

namespace ete::front {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

bool eventually(const std::function<bool()>& condition) {
  const auto end = steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

// Counts what happens to an exchange.
struct Watch : HttpExchange::Events {
  std::atomic<int> gone{0}, writable{0};
  void on_gone() override { ++gone; }
  void on_writable() override { ++writable; }
};

// A server that answers with what was asked; /stream and /later leave their exchange to the test.
class HttpConnectionTest : public ::testing::Test {
 protected:
  void start(const HttpLimits& limits = {}) {
    HttpServer::Options options;
    options.address = service::parse_address("127.0.0.1:0");
    options.limits = limits;
    server_.emplace(options, [this](const std::shared_ptr<HttpExchange>& exchange) {
      const bool stream = exchange->request().path == "/stream";
      if (stream) {
        exchange->set_events(watch_);
        exchange->expect_stream();
      }
      if (stream || exchange->request().path == "/later") {
        const std::lock_guard lock(mutex_);
        left_ = exchange;
        return;
      }
      const HttpRequest& request = exchange->request();
      exchange->reply({.body = request.method + " " + request.path + " " + request.body});
    });
  }
  void TearDown() override {
    take();
    server_.reset();
  }
  int port() const { return server_->address().port; }
  std::shared_ptr<HttpExchange> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(left_, nullptr);
  }
  std::shared_ptr<HttpExchange> wait_for_exchange() {
    std::shared_ptr<HttpExchange> exchange;
    EXPECT_TRUE(eventually([&] { return (exchange = take()) != nullptr; }));
    return exchange;
  }

  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  std::mutex mutex_;
  std::shared_ptr<HttpExchange> left_;
  std::optional<HttpServer> server_;
};

TEST_F(HttpConnectionTest, EveryResponseIsDated) {
  start();
  HttpClient client(port());
  const auto dated = [](const HttpAnswer& answer) {
    const auto date = answer.headers.find("date");
    tm parsed{};
    if (date == answer.headers.end()) return false;
    const char* end = strptime(date->second.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parsed);
    return end != nullptr && *end == '\0' && std::abs(timegm(&parsed) - time(nullptr)) < 60;
  };
  EXPECT_TRUE(dated(client.ask("GET /a HTTP/1.1\r\nHost: x\r\n\r\n")));
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_exchange();
  exchange->write("data: x\n\n");
  exchange->end_stream();
  EXPECT_TRUE(dated(client.read()));
  HttpClient wrong(port());
  EXPECT_TRUE(dated(wrong.ask("nonsense\r\n\r\n")));
}

TEST_F(HttpConnectionTest, AClientThatHasEndedItsSideIsAnswered) {
  start();
  HttpClient client(port());
  client.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /later HTTP/1.1\r\nHost: x\r\n\r\n");
  client.send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  client.end_sending();
  EXPECT_EQ(client.read().body, "GET /a ");
  const auto exchange = wait_for_exchange();
  std::this_thread::sleep_for(milliseconds(400));
  exchange->reply({.body = "late"});
  EXPECT_EQ(client.read().body, "late");
  EXPECT_EQ(client.read().body, "GET /b ");
  EXPECT_TRUE(client.ended());
  HttpClient wrong(port());
  wrong.send("nonsense\r\n\r\n");
  wrong.end_sending();
  EXPECT_EQ(wrong.read().status, 400);
  EXPECT_TRUE(wrong.ended());
}

TEST_F(HttpConnectionTest, AClientThatHasEndedItsSideIsTold) {
  HttpLimits limits;
  limits.half_closed = std::chrono::seconds(30);
  start(limits);
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  client.end_sending();
  const auto exchange = wait_for_exchange();
  std::this_thread::sleep_for(milliseconds(200));
  exchange->reply({.status = 404});
  EXPECT_EQ(client.read().status, 404);
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(watch_->gone, 0);
}

TEST_F(HttpConnectionTest, WhatRunsForAClientThatHasEndedItsSideIsGivenUp) {
  HttpLimits limits;
  limits.half_closed = milliseconds(100);
  start(limits);
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  client.end_sending();
  const auto exchange = wait_for_exchange();
  for (int i = 0; i < 100 && watch_->gone == 0; ++i) {
    exchange->write("data: x\n\n");
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_EQ(watch_->gone, 1);
}

TEST_F(HttpConnectionTest, ManyRequestsOnOneConnection) {
  start();
  HttpClient client(port());
  EXPECT_EQ(client.ask(HttpClient::post("/a?x=1", "body")).body, "POST /a body");
  EXPECT_EQ(client.ask("GET /b HTTP/1.1\r\nHost: x\r\n\r\n").body, "GET /b ");
  // Two at once, and a third byte by byte.
  client.send(HttpClient::post("/c", "1") + HttpClient::post("/d", "2"));
  EXPECT_EQ(client.read().body, "POST /c 1");
  EXPECT_EQ(client.read().body, "POST /d 2");
  for (const char byte : HttpClient::post("/e", "3")) client.send(std::string(1, byte));
  EXPECT_EQ(client.read().body, "POST /e 3");
  client.send(
      "POST /f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, "POST /f abcde");
  const HttpAnswer last = client.ask("GET /g HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(last.body, "GET /g ");
  EXPECT_TRUE(client.ended());
}

TEST_F(HttpConnectionTest, HeadHasNoBody) {
  start();
  HttpClient client(port());
  client.send("HEAD /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(client.wait_for("Content-Length: 8\r\n"));
  EXPECT_TRUE(client.wait_for("\r\n\r\nHTTP/1.1 200 OK"));
}

TEST_F(HttpConnectionTest, MalformedRequestsAreRefused) {
  start();
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\n";
  for (const std::string& bytes :
       {std::string("nonsense\r\n\r\n"), std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        post + "Content-Length: -1\r\n\r\n", post + "Content-Length: 99999999999999999999\r\n\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        post + "Transfer-Encoding: chunked\r\n\r\n1;" + std::string(100'000, 'x')}) {
    HttpClient client(port());
    client.send(bytes);
    const HttpAnswer answer = client.read();
    EXPECT_TRUE(answer.status == 400 || answer.status == 413) << bytes << " " << answer.status;
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
    EXPECT_TRUE(client.ended());
  }
  HttpClient client(port());
  EXPECT_EQ(client.ask("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
}

// RFC 9112 3.2.2. The path is what follows the authority, which holds in place of the header.
TEST_F(HttpConnectionTest, TargetsInAbsoluteForm) {
  start();
  HttpClient client(port());
  const auto path_at = [&](const std::string& target) {
    return client.ask("GET " + target + " HTTP/1.1\r\nHost: other\r\n\r\n").body;
  };
  EXPECT_EQ(path_at("http://host/v1/models?a=/b"), "GET /v1/models ");
  EXPECT_EQ(path_at("HTTPS://[::1]:8080/a//b"), "GET /a//b ");
  EXPECT_EQ(path_at("http://host"), "GET / ");
  EXPECT_EQ(path_at("http://host?a=/b"), "GET / ");
  EXPECT_EQ(path_at("/http://host/a"), "GET /http://host/a ");
  EXPECT_EQ(client.ask("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").body, "OPTIONS * ");
  EXPECT_EQ(client.ask("OPTIONS http://host HTTP/1.1\r\nHost: x\r\n\r\n").body, "OPTIONS * ");
  client.send("POST http://named:1/stream HTTP/1.1\r\nHost: other\r\nContent-Length: 1\r\n\r\nx");
  const auto exchange = wait_for_exchange();
  ASSERT_NE(exchange, nullptr);
  EXPECT_EQ(exchange->request().host, "named:1");
  EXPECT_EQ(exchange->request().body, "x");
}

TEST_F(HttpConnectionTest, OtherTargetsAreRefused) {
  start();
  for (const std::string& target :
       {std::string("v1/models"), std::string("*"), std::string("http:/a"), std::string("http:///a"),
        std::string("http://:80/a"), std::string("http://user@host/a"), std::string("ftp://host/a"),
        std::string("http://"), std::string(5000, 'x')}) {
    HttpClient client(port());
    const HttpAnswer answer = client.ask("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(answer.status, 400) << target;
    const auto message = answer.json()["error"]["message"].get<std::string>();
    EXPECT_NE(message.find(target.substr(0, 90)), std::string::npos) << message;
    EXPECT_LT(message.size(), 300u);
    EXPECT_TRUE(client.ended()) << target;
  }
}

// Its body's end is not known, so what follows is no request.
TEST_F(HttpConnectionTest, UnknownTransferEncodingsAreRefused) {
  start();
  for (const char* coding : {"gzip", "gzip, chunked", "identity"}) {
    HttpClient client(port());
    client.send(std::string("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: ") + coding +
                "\r\n\r\n0\r\n\r\n");
    EXPECT_EQ(client.read().status, 501) << coding;
    EXPECT_TRUE(client.ended()) << coding;
  }
}

TEST_F(HttpConnectionTest, RandomBytesDoNoHarm) {
  start();
  std::mt19937 random(1);
  const std::string good = HttpClient::post("/a", "12345");
  for (int i = 0; i < 200; ++i) {
    std::string bytes = good;
    for (int j = 0; j < 3; ++j) bytes[random() % bytes.size()] = static_cast<char>(random());
    HttpClient client(port());
    client.send(bytes);
  }
  HttpClient client(port());
  EXPECT_EQ(client.ask(good).status, 200);
}

TEST_F(HttpConnectionTest, SizesAreLimited) {
  HttpLimits limits;
  limits.header_bytes = 1000;
  limits.body_bytes = 2000;
  start(limits);
  HttpClient header(port());
  EXPECT_EQ(header.ask("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(5000, 'x') + "\r\n\r\n").status, 431);
  HttpClient body(port());
  EXPECT_EQ(body.ask(HttpClient::post("/", std::string(2001, 'x'))).status, 413);
  HttpClient chunked(port());
  EXPECT_EQ(chunked
                .ask("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d1\r\n" +
                     std::string(2001, 'x'))
                .status,
            413);
  HttpClient fits(port());
  EXPECT_EQ(fits.ask(HttpClient::post("/", std::string(2000, 'x'))).status, 200);
}

TEST_F(HttpConnectionTest, BodiesTogetherAreLimited) {
  HttpLimits limits;
  limits.bodies_bytes = 150'000;
  start(limits);
  const std::string half =
      "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 200000\r\n\r\n" + std::string(100'000, 'x');
  auto first = std::make_unique<HttpClient>(port());
  first->send(half);
  std::this_thread::sleep_for(milliseconds(200));
  HttpClient second(port());
  EXPECT_EQ(second.ask(half).status, 503);
  first.reset();
  EXPECT_TRUE(eventually([&] {
    HttpClient third(port());
    return third.ask(HttpClient::post("/", std::string(100'000, 'x'))).status == 200;
  }));
}

TEST_F(HttpConnectionTest, ConnectionsAreLimited) {
  HttpLimits limits;
  limits.connections = 2;
  start(limits);
  auto first = std::make_unique<HttpClient>(port());
  HttpClient second(port());
  EXPECT_EQ(first->ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
  EXPECT_EQ(second.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
  HttpClient third(port());
  EXPECT_EQ(third.read().status, 503);
  first.reset();
  EXPECT_TRUE(
      eventually([&] { return HttpClient(port()).ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").status == 200; }));
}

TEST_F(HttpConnectionTest, SlowAndIdleClientsAreLeft) {
  HttpLimits limits;
  limits.idle = milliseconds(100);
  limits.request = milliseconds(100);
  start(limits);
  HttpClient idle(port());
  EXPECT_TRUE(idle.ended());
  HttpClient slow(port());
  slow.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nx");
  EXPECT_EQ(slow.read().status, 408);
  EXPECT_TRUE(slow.ended());
}

TEST_F(HttpConnectionTest, ContinuesWhenAsked) {
  start();
  HttpClient client(port());
  client.send("POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  ASSERT_TRUE(client.wait_for("HTTP/1.1 100 Continue\r\n\r\n"));
  client.read();
  EXPECT_EQ(client.ask("ok").body, "POST /a ok");
}

TEST_F(HttpConnectionTest, StreamsEvents) {
  start();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_exchange();
  exchange->write("data: 1\n\n");
  ASSERT_TRUE(client.wait_for("data: 1\n\n\r\n"));
  exchange->write("data: 2\n\n");
  exchange->end_stream();
  exchange->write("data: late\n\n");
  exchange->reply({.body = "later"});
  const HttpAnswer answer = client.read();
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(answer.body, "data: 1\n\ndata: 2\n\n");
  EXPECT_EQ(client.ask("GET /b HTTP/1.1\r\nHost: x\r\n\r\n").body, "GET /b ");
}

TEST_F(HttpConnectionTest, AnOldClientsStreamEndsWithItsConnection) {
  start();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.0\r\n\r\n");
  const auto exchange = wait_for_exchange();
  exchange->write("data: 1\n\n");
  exchange->end_stream();
  EXPECT_TRUE(client.wait_for("\r\n\r\ndata: 1\n\n"));
  client.read();
}

// What a client does not read waits here, where it is seen, not in the kernel's buffers, which grow.
TEST_F(HttpConnectionTest, WhoReadsNothingIsSeenToBeBehind) {
  start();
  HttpClient client(port(), 4096);
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_exchange();
  const std::string event = "data: " + std::string(1000, 'x') + "\n\n";
  size_t written = 0;
  for (; exchange->wants_more() && written < (4u << 20); written += event.size()) {
    exchange->write(event);
    if (written % (16 * event.size()) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_LT(written, 512u << 10);
  client.close();
}

// Which has to be told that its connection stays open.
TEST_F(HttpConnectionTest, AnOldClientMayKeepItsConnection) {
  start();
  HttpClient client(port());
  for (int i = 0; i < 2; ++i) {
    HttpAnswer answer = client.ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(answer.body, "GET / ");
    EXPECT_EQ(answer.headers["connection"], "keep-alive");
  }
}

TEST_F(HttpConnectionTest, AReplyWithoutContentSaysNothingOfIt) {
  start();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  wait_for_exchange()->reply({.status = 204});
  const HttpAnswer answer = client.read();
  EXPECT_EQ(answer.status, 204);
  EXPECT_FALSE(answer.headers.contains("content-length") || answer.headers.contains("content-type"));
}

TEST_F(HttpConnectionTest, AFailureBeforeTheStreamHasAStatus) {
  start();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  wait_for_exchange()->reply({.status = 429, .body = "no"});
  EXPECT_EQ(client.read().status, 429);
}

TEST_F(HttpConnectionTest, CommentsFillPauses) {
  HttpLimits limits;
  limits.quiet = milliseconds(50);
  limits.keep_alive = milliseconds(50);
  start(limits);
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_exchange();
  ASSERT_TRUE(client.wait_for(": keep-alive\n\n"));
  std::this_thread::sleep_for(milliseconds(200));
  // The stream has begun: an error is an event.
  exchange->reply({.status = 500, .body = "{}"});
  const HttpAnswer answer = client.read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.body.ends_with(": keep-alive\n\ndata: {}\n\n")) << answer.body;
}

TEST_F(HttpConnectionTest, AClientThatGoesIsNoticed) {
  start();
  auto client = std::make_unique<HttpClient>(port());
  client->send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  auto exchange = wait_for_exchange();
  const auto begin = steady_clock::now();
  client.reset();
  EXPECT_TRUE(eventually([&] { return watch_->gone == 1; }));
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(HttpConnectionTest, AClientThatDoesNotReadHoldsLittleAndIsLeft) {
  HttpLimits limits;
  limits.unread = milliseconds(500);
  start(limits);
  HttpClient client(port(), 4096);
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = wait_for_exchange();
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  size_t written = 0;
  // The sockets' own buffers take some megabytes at most.
  const bool full = eventually([&] {
    while (exchange->wants_more() && written < (64u << 20)) {
      exchange->write(event);
      written += event.size();
    }
    std::this_thread::sleep_for(milliseconds(50));
    return !exchange->wants_more();
  });
  EXPECT_TRUE(full);
  EXPECT_LT(written, 32u << 20);
  EXPECT_TRUE(eventually([&] { return watch_->gone == 1; }));
  // Another client is served all the while.
  HttpClient other(port());
  EXPECT_EQ(other.ask("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
}

TEST_F(HttpConnectionTest, DrainsBehindTheResponse) {
  start();
  HttpClient client(port());
  HttpClient idle(port());
  EXPECT_EQ(idle.ask("GET /a HTTP/1.1\r\nHost: x\r\n\r\n").status, 200);
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  auto exchange = wait_for_exchange();
  std::thread stopper([&] { server_->shutdown(std::chrono::seconds(20)); });
  EXPECT_TRUE(idle.ended());
  exchange->write("data: 1\n\n");
  exchange->end_stream();
  exchange.reset();
  EXPECT_EQ(client.read().body, "data: 1\n\n");
  stopper.join();
  EXPECT_EQ(watch_->gone, 0);
}

TEST_F(HttpConnectionTest, EndsWhatDoesNotEndInTime) {
  start();
  HttpClient client(port());
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  wait_for_exchange();
  server_->shutdown(milliseconds(50));
  EXPECT_EQ(watch_->gone, 1);
}

}  // namespace
}  // namespace ete::front
