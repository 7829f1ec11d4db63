#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ete::front {

class HttpConnection;

struct HttpRequest {
  std::string method;
  std::string path;  // without the query, not decoded
  std::string host;  // of the target, where that names one, else the header, as the next three; empty: none
  std::string origin;
  std::string authorization;
  std::string traceparent;
  std::string peer;  // for the log
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpReply {
  unsigned status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  HttpHeaders headers = {};
  std::string events = {};  // instead, once a stream has begun; empty: the body is its last event
};

// One request and its response, whole or as a stream of server-sent events, as its handler sees it. A handler
// keeps it until it has answered or on_gone() came, and not longer: it holds the connection. Thread-safe;
// what is done after the end of the response, or of the connection, is ignored.
class HttpExchange : public std::enable_shared_from_this<HttpExchange> {
 public:
  // Told on the connection's strand.
  class Events {
   public:
    virtual ~Events() = default;
    // The client has gone, or has not read for too long. Last.
    virtual void on_gone() = 0;
    // wants_more() may have turned true.
    virtual void on_writable() = 0;
  };

  // A client that does not read holds about that much.
  static constexpr size_t kMostWaitingBytes = 64 << 10;

  HttpExchange(std::shared_ptr<HttpConnection> connection, HttpRequest request)
      : connection_(std::move(connection)), request_(std::move(request)) {}

  const HttpRequest& request() const { return request_; }

  // Both before the handler returns.
  void set_events(std::shared_ptr<Events> events) { events_ = std::move(events); }
  void add_header(std::string name, std::string value) {
    headers_.emplace_back(std::move(name), std::move(value));
  }

  // The whole response, or the end of a stream that has begun.
  void reply(HttpReply reply);
  // A stream will follow. It begins with the first write() or, so that the client knows, a second from now;
  // until then reply() still has a status of its own. From then on comments fill the pauses.
  void expect_stream();
  // Whole events, each ended by an empty line; of none nothing is sent.
  void write(std::string events);
  void end_stream();

  // False: the client is behind with reading.
  bool wants_more() const { return waiting_bytes_ < kMostWaitingBytes; }

 private:
  friend class HttpConnection;

  const std::shared_ptr<HttpConnection> connection_;
  const HttpRequest request_;
  HttpHeaders headers_;
  std::shared_ptr<Events> events_;
  std::atomic<size_t> waiting_bytes_{0};  // written, not yet taken by the socket
};

}  // namespace ete::front
