#include "services/front/http/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/buffers_iterator.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/write.hpp>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>

#include "services/common/safe_text.h"
#include "services/front/http/request_target.h"

namespace ete::front {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr size_t kMostReadAhead = 64 << 10;  // while a response is under way
constexpr std::chrono::seconds kLinger{2};
constexpr std::string_view kComment = ": keep-alive\n\n";

std::string chunk_of(std::string_view bytes) {
  std::ostringstream size;
  size << std::hex << bytes.size();
  return size.str() + "\r\n" + std::string(bytes) + "\r\n";
}

// As RFC 9110, 5.6.7 writes a time.
std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

template <typename Message>
void set_headers(Message& message, const HttpHeaders& headers) {
  for (const auto& [name, value] : headers) message.set(name, value);
}

// Without chunks as the only coding nobody knows where the body ends and the next request begins.
bool has_unknown_coding(const http::fields& header) {
  const auto [first, last] = header.equal_range(http::field::transfer_encoding);
  return std::any_of(first, last,
                     [](const auto& field) { return !boost::beast::iequals(field.value(), "chunked"); });
}

// Before a request's first line (RFC 9112, 2.2).
void skip_empty_lines(boost::beast::flat_buffer& in) {
  const auto next_is = [&in](std::string_view line) {
    return in.size() >= line.size() && std::equal(line.begin(), line.end(), asio::buffers_begin(in.cdata()));
  };
  while (next_is("\r\n")) in.consume(2);
}

bool is_encoded(const http::fields& header) {
  const auto coding = header[http::field::content_encoding];
  return !coding.empty() && !boost::beast::iequals(coding, "identity");
}

// As OpenAI words an error of the transport.
std::string error_body(const std::string& message) {
  return nlohmann::ordered_json{
      {"error",
       {{"message", message}, {"type", "invalid_request_error"}, {"param", nullptr}, {"code", nullptr}}}}
      .dump();
}

}  // namespace

HttpConnection::HttpConnection(Socket socket, HttpShared& shared)
    : registration_{shared, this},
      shared_(shared),
      stream_(std::move(socket), shared.tls()),
      timer_(stream_.executor()),
      since_(Clock::now()) {}

HttpConnection::~HttpConnection() { shared_.body_bytes -= taken_body_bytes_; }

HttpConnection::Registration::~Registration() { shared.on_gone(connection); }

void HttpConnection::post(std::function<void()> work) {
  asio::post(stream_.executor(), [self = shared_from_this(), work = std::move(work)] { work(); });
}

void HttpConnection::start() {
  post([this] {
    stream_.handshake([self = shared_from_this()](const error_code& error, size_t /*bytes*/) {
      if (error) return self->refuse_stranger(error);
      self->read();
      self->watch();
    });
    watch();
  });
}

void HttpConnection::refuse_stranger(const error_code& error) {
  // A client that only tries whether somebody listens says nothing.
  if (state_ != State::closed && error != asio::error::eof) {
    shared_.on_refused("TLS: " + error.message(), stream_.peer());
  }
  close_now();
}

void HttpConnection::drain() {
  post([this] {
    keep_alive_ = false;
    if (state_ == State::reading) close_now();
  });
}

void HttpConnection::close() {
  post([this] { close_now(); });
}

// ---- reading

void HttpConnection::read() {
  if (read_pending_ || input_ended_ || state_ == State::closed || in_.size() >= kMostReadAhead) return;
  read_pending_ = true;
  stream_.read_some(asio::buffer(chunk_), [self = shared_from_this()](const error_code& error, size_t bytes) {
    self->read_pending_ = false;
    self->on_read(error, bytes);
  });
}

void HttpConnection::on_read(const error_code& error, size_t bytes) {
  if (state_ == State::closed) return;
  if (error == asio::error::eof) return on_end_of_input();
  if (error) return close_now();
  if (state_ != State::lingering) {
    asio::buffer_copy(in_.prepare(bytes), asio::buffer(chunk_, bytes));
    in_.commit(bytes);
  }
  if (state_ == State::reading) parse();
  read();
  watch();
}

// A client that only sends no more still reads, and one that is gone looks the same: what has been asked and
// is answered at once is.
void HttpConnection::on_end_of_input() {
  if (state_ != State::handling) return close_now();
  input_ended_ = Clock::now();
  watch();
}

// Takes as much of a request as has come.
void HttpConnection::parse() {
  if (!parser_) skip_empty_lines(in_);
  if (in_.size() == 0) return;
  if (!parser_) {
    parser_.emplace();
    parser_->eager(true);
    parser_->header_limit(static_cast<uint32_t>(shared_.limits.header_bytes));
    parser_->body_limit(shared_.limits.body_bytes);
    continue_said_ = false;
    since_ = Clock::now();
  }
  error_code error;
  while (in_.size() > 0 && !parser_->is_done()) {
    const size_t used = parser_->put(in_.data(), error);
    in_.consume(used);
    if (error == http::error::need_more || (!error && used == 0)) break;
    if (error) break;
  }
  if (error == http::error::header_limit) {
    return refuse(431,
                  "the request's header exceeds " + std::to_string(shared_.limits.header_bytes) + " bytes");
  }
  if (error == http::error::body_limit) {
    return refuse(413, "the request's body exceeds " + std::to_string(shared_.limits.body_bytes) + " bytes");
  }
  if (error && error != http::error::need_more) return refuse(400, "no HTTP request: " + error.message());
  if (parser_->is_header_done() && has_unknown_coding(parser_->get())) {
    return refuse(501, "a Transfer-Encoding other than chunked is not supported");
  }
  if (!parser_->is_done() && in_.size() >= kMostReadAhead) {
    return refuse(400, "no HTTP request: a line, or what follows a body in chunks, exceeds " +
                           std::to_string(kMostReadAhead) + " bytes");
  }
  if (!take_body_bytes(parser_->get().body().size())) {
    return refuse(503, "too many requests with large bodies are under way; try again later");
  }
  if (parser_->is_done()) return handle();
  // Clients of HTTP/1.0 take it for the answer.
  if (parser_->is_header_done() && !continue_said_ && parser_->get().version() >= 11 &&
      boost::beast::iequals(parser_->get()[http::field::expect], "100-continue")) {
    continue_said_ = true;
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
}

// Accounts for a body that has grown to so many bytes.
bool HttpConnection::take_body_bytes(size_t bytes) {
  shared_.body_bytes += bytes - taken_body_bytes_;
  taken_body_bytes_ = bytes;
  return bytes == 0 || shared_.body_bytes <= shared_.limits.bodies_bytes;
}

void HttpConnection::handle() {
  http::request<http::string_body> message = parser_->release();
  parser_.reset();
  state_ = State::handling;
  since_ = Clock::now();
  keep_alive_ = keep_alive_ && message.keep_alive();
  chunked_ = message.version() >= 11;
  head_only_ = message.method() == http::verb::head;
  // Whoever stands between may have read another of them, and whose page asks depends on it.
  const auto hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) {
    return refuse(400, "no HTTP request: " + std::to_string(hosts) + " Host lines; expected one");
  }
  if (is_encoded(message)) {
    const std::string coding(message[http::field::content_encoding]);
    return refuse(415, "Content-Encoding: \"" + service::safe_text(coding, 50) +
                           "\" is not accepted; expected the body as it is");
  }
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view view{message.target().data(), message.target().size()};
  auto target = parse_request_target(request.method, view);
  if (!target) {
    return refuse(400, "the request's target \"" + service::safe_text(view, 100) +
                           "\" is not accepted; expected a path, or http:// or https:// with a host");
  }
  request.path = std::move(target->path);
  request.host = target->host ? std::move(*target->host) : std::string(message[http::field::host]);
  request.origin = std::string(message[http::field::origin]);
  request.authorization = std::string(message[http::field::authorization]);
  request.traceparent = std::string(message["traceparent"]);
  request.peer = stream_.peer();
  request.body = std::move(message.body());
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), std::move(request));
  shared_.handler(exchange_);
}

// Answers what is no request; nothing after it can be understood.
void HttpConnection::refuse(unsigned status, const std::string& why) {
  parser_.reset();
  state_ = State::handling;
  keep_alive_ = false;
  head_only_ = false;
  exchange_ = std::make_shared<HttpExchange>(shared_from_this(), HttpRequest{});
  reply({.status = status, .body = error_body(why)});
}

// ---- responding

void HttpExchange::reply(HttpReply reply) {
  connection_->post([self = shared_from_this(), reply = std::make_shared<HttpReply>(std::move(reply))] {
    if (self->connection_->is_current(*self)) self->connection_->reply(std::move(*reply));
  });
}

void HttpExchange::expect_stream() {
  connection_->post([self = shared_from_this()] {
    if (self->connection_->is_current(*self)) self->connection_->expect_stream();
  });
}

void HttpExchange::write(std::string events) {
  if (events.empty()) return;  // an empty chunk would end the reply
  waiting_bytes_ += events.size();
  connection_->post([self = shared_from_this(), events = std::make_shared<std::string>(std::move(events))] {
    HttpConnection& connection = *self->connection_;
    if (!connection.is_current(*self)) return;
    connection.out_events_ += events->size();
    connection.write_events(std::move(*events));
  });
}

void HttpExchange::end_stream() {
  connection_->post([self = shared_from_this()] {
    if (self->connection_->is_current(*self)) self->connection_->end_stream();
  });
}

void HttpConnection::reply(HttpReply reply) {
  if (ended_) return;
  if (streaming_) {
    write_events(reply.events.empty() ? "data: " + reply.body + "\n\n" : std::move(reply.events));
    return end_stream();
  }
  http::response<http::string_body> message(http::int_to_status(reply.status), 11);
  message.keep_alive(keep_alive_);
  // Clients of HTTP/1.0 take its end for the answer's unless they are told.
  if (keep_alive_ && !chunked_) message.set(http::field::connection, "keep-alive");
  message.set(http::field::date, date_now());
  message.set(http::field::content_type, reply.content_type);
  set_headers(message, exchange_->headers_);
  set_headers(message, reply.headers);
  message.body() = std::move(reply.body);
  message.prepare_payload();
  if (reply.status == 204) {  // says nothing of a content (RFC 9110, 8.6)
    message.erase(http::field::content_length);
    message.erase(http::field::content_type);
  }
  if (head_only_) message.body().clear();
  std::ostringstream head;
  head << message.base();
  ended_ = true;
  send(head.str() + message.body());
}

void HttpConnection::expect_stream() {
  stream_expected_ = true;
  watch();
}

void HttpConnection::begin_stream() {
  streaming_ = true;
  keep_alive_ = keep_alive_ && chunked_;
  http::response<http::empty_body> message(http::status::ok, 11);
  message.keep_alive(keep_alive_);
  message.set(http::field::date, date_now());
  message.set(http::field::content_type, "text/event-stream; charset=utf-8");
  message.set(http::field::cache_control, "no-cache");
  set_headers(message, exchange_->headers_);
  if (chunked_) message.chunked(true);
  std::ostringstream head;
  head << message.base();
  send(head.str());
}

void HttpConnection::write_events(std::string events) {
  if (ended_) return;
  if (!streaming_) begin_stream();
  send(chunked_ ? chunk_of(events) : std::move(events));
}

void HttpConnection::end_stream() {
  if (ended_) return;
  if (!streaming_) begin_stream();
  ended_ = true;
  send(chunked_ ? "0\r\n\r\n" : "");
}

void HttpConnection::send(std::string bytes) {
  if (out_.empty()) {
    out_ = std::move(bytes);
  } else {
    out_ += bytes;
  }
  if (writing_.empty()) write();
}

void HttpConnection::write() {
  if (state_ == State::closed) return;
  if (writing_.empty()) {
    writing_ = std::exchange(out_, {});
    written_ = 0;
    last_written_ = Clock::now();
    writing_events_ = std::exchange(out_events_, 0);
  }
  if (writing_.empty()) {
    return ended_ ? response_ended() : watch();
  }
  stream_.write_some(
      asio::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](const error_code& error, size_t bytes) { self->on_written(error, bytes); });
  watch();
}

void HttpConnection::on_written(const error_code& error, size_t bytes) {
  if (state_ == State::closed) return;
  if (error) return close_now();
  last_written_ = Clock::now();
  written_ += bytes;
  if (written_ == writing_.size()) {
    if (exchange_ != nullptr) {
      exchange_->waiting_bytes_ -= writing_events_;
      if (exchange_->events_ != nullptr) exchange_->events_->on_writable();
    }
    writing_.clear();
  }
  write();
}

void HttpConnection::response_ended() {
  if (exchange_ != nullptr) exchange_->events_.reset();
  exchange_.reset();
  stream_expected_ = streaming_ = ended_ = false;
  out_events_ = writing_events_ = 0;
  take_body_bytes(0);
  since_ = Clock::now();
  if (!keep_alive_) return linger();
  state_ = State::reading;
  parse();
  if (input_ended_ && state_ == State::reading) return linger();
  read();
  watch();
}

void HttpConnection::linger() {
  if (input_ended_) return close_now();
  state_ = State::lingering;
  stream_.end_writing([self = shared_from_this()](const error_code&, size_t) { self->close_now(); });
  in_.clear();
  read();
  watch();
}

void HttpConnection::close_now() {
  if (state_ == State::closed) return;
  state_ = State::closed;
  stream_.close();
  timer_.cancel();
  if (const auto exchange = std::move(exchange_); exchange != nullptr && exchange->events_ != nullptr) {
    const auto events = std::move(exchange->events_);
    events->on_gone();
  }
}

bool HttpConnection::runs_half_closed() const {
  return input_ended_ && !ended_ && exchange_ != nullptr && exchange_->events_ != nullptr;
}

// ---- time

HttpConnection::Clock::time_point HttpConnection::deadline() const {
  const HttpLimits& limits = shared_.limits;
  if (runs_half_closed()) return *input_ended_ + limits.half_closed;
  if (!writing_.empty()) return last_written_ + limits.unread;
  if (state_ == State::lingering) return since_ + kLinger;
  if (state_ == State::reading) return since_ + (parser_ ? limits.request : limits.idle);
  if (streaming_) return last_written_ + limits.keep_alive;
  return stream_expected_ ? since_ + limits.quiet : Clock::time_point::max();
}

// Sets the timer unless it goes off soon enough.
void HttpConnection::watch() {
  if (state_ == State::closed) return;
  const Clock::time_point due = deadline();
  if (due == Clock::time_point::max() || (timer_set_ && timer_.expiry() <= due)) return;
  timer_set_ = true;
  timer_.expires_at(due);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->state_ == State::closed) return;
    self->timer_set_ = false;
    self->on_time();
  });
}

void HttpConnection::on_time() {
  if (Clock::now() < deadline()) return watch();
  if (runs_half_closed()) return close_now();
  if (state_ == State::handling && writing_.empty()) {
    write_events(std::string(kComment));
  } else if (state_ == State::reading && parser_ && writing_.empty()) {
    refuse(408,
           "the request did not arrive within " + std::to_string(shared_.limits.request.count()) + " ms");
  } else {
    close_now();
  }
}

}  // namespace ete::front
