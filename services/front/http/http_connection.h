#pragma once

// Asio needs it before its own headers under g++ 12.
#include <utility>

#include <array>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "services/front/http/exchange.h"
#include "services/front/http/http_stream.h"

namespace ete::front {

struct HttpLimits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = size_t{4} << 20;
  size_t bodies_bytes = size_t{256} << 20;  // of all requests that are being read or handled, together
  size_t connections = 1024;
  std::chrono::milliseconds idle{75'000};        // between requests
  std::chrono::milliseconds request{60'000};     // from a request's first byte to its last
  std::chrono::milliseconds unread{30'000};      // for which a client may take nothing of what waits for it
  std::chrono::milliseconds quiet{1'000};        // until an expected stream begins without an event
  std::chrono::milliseconds keep_alive{10'000};  // between comments in a stream's pauses
  // For which a handler with events may still answer a client that has ended its side of the connection.
  std::chrono::milliseconds half_closed{250};
};

// What the connections of one server share; outlives them.
struct HttpShared {
  HttpLimits limits;
  std::function<void(std::shared_ptr<HttpExchange>)> handler;  // must not block
  std::function<void(HttpConnection*)> on_gone;                // when nothing of it is left
  // The TLS context of a new connection; null: none.
  std::function<std::shared_ptr<boost::asio::ssl::context>()> tls = [] { return nullptr; };
  std::function<void(const std::string& reason, const std::string& peer)> on_refused;  // by TLS
  std::atomic<size_t> body_bytes{0};
};

// HTTP/1.1 on one socket, request after request. It reads also while a response is under way, a little ahead,
// so that it learns at once when the client goes. Everything below runs on the connection's strand; it lives
// as long as an operation of its socket, its timer or an exchange's handler holds it.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Socket = HttpStream::Socket;

  // The socket's executor is a strand.
  HttpConnection(Socket socket, HttpShared& shared);
  ~HttpConnection();

  // Any thread.
  void start();
  void drain();  // ends behind the response that is under way
  void close();  // at once

 private:
  friend class HttpExchange;
  using Clock = std::chrono::steady_clock;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class State {
    reading,    // a request is awaited, or on its way
    handling,   // its response is under way
    lingering,  // all is said: what still comes is dropped, so that the last words are not
    closed,
  };

  // Destroyed last.
  struct Registration {
    HttpShared& shared;
    HttpConnection* connection;
    ~Registration();
  };

  void post(std::function<void()> work);
  void refuse_stranger(const boost::system::error_code& error);
  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void on_end_of_input();
  void parse();
  bool take_body_bytes(size_t bytes);
  void handle();
  void refuse(unsigned status, const std::string& why);

  // For the exchange; ignored unless it is the one under way.
  bool is_current(const HttpExchange& exchange) const { return exchange_.get() == &exchange; }
  void reply(HttpReply reply);
  void expect_stream();
  void write_events(std::string events);
  void end_stream();

  void begin_stream();
  void send(std::string bytes);
  void write();
  void on_written(const boost::system::error_code& error, size_t bytes);
  void response_ended();
  void linger();
  void close_now();

  // The client may be gone, and what runs for it would be for nobody.
  bool runs_half_closed() const;
  // When something is due unless the state changes first.
  Clock::time_point deadline() const;
  void watch();
  void on_time();

  const Registration registration_;
  HttpShared& shared_;
  HttpStream stream_;
  boost::asio::steady_timer timer_;
  bool timer_set_ = false;
  State state_ = State::reading;

  std::array<char, 16 << 10> chunk_;
  bool read_pending_ = false;
  std::optional<Clock::time_point> input_ended_;  // the client has ended its side
  boost::beast::flat_buffer in_;                  // what has come and is not parsed
  std::optional<Parser> parser_;                  // of the request that is being read
  size_t taken_body_bytes_ = 0;                   // of shared_.body_bytes
  bool continue_said_ = false;
  Clock::time_point since_;  // the state's, or a request's first byte

  std::shared_ptr<HttpExchange> exchange_;  // while handling
  bool keep_alive_ = true;
  bool chunked_ = true;  // HTTP/1.0 knows no chunks: there the end of the connection ends a stream
  bool head_only_ = false;
  bool stream_expected_ = false;
  bool streaming_ = false;
  bool ended_ = false;  // the response is complete but for what is not written

  std::string out_;      // waits
  std::string writing_;  // in flight, from written_ on
  size_t written_ = 0;
  size_t out_events_ = 0;      // bytes of the exchange's own in out_,
  size_t writing_events_ = 0;  // and in writing_
  Clock::time_point last_written_;
};

}  // namespace ete::front
