#include "services/front/http/http_server.h"

#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "services/front/http/http_tls.h"

namespace ete::front {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Acceptor = asio::basic_socket_acceptor<asio::generic::stream_protocol>;

constexpr unsigned kMostThreads = 4;
constexpr std::chrono::milliseconds kAcceptPause{100};  // after a failure, as when descriptors run out
constexpr std::chrono::minutes kWarnInterval{1};
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    "Content-Type: application/json\r\nContent-Length: 117\r\n\r\n"
    R"({"error":{"message":"too many connections; try again later","type":"server_error","param":null,"code":"unavailable"}})";

[[noreturn]] void cannot_listen(const service::Address& address, const std::string& why) {
  throw std::runtime_error("cannot listen for HTTP at " + address.to_string() + ": " + why);
}

asio::generic::stream_protocol::endpoint endpoint_of(asio::io_context& io, const service::Address& address) {
  if (address.kind == service::Address::Kind::unix_socket) {
    return asio::local::stream_protocol::endpoint(address.path);
  }
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
  if (error || found.empty()) cannot_listen(address, error ? error.message() : "no such host");
  return found.begin()->endpoint();
}

}  // namespace

class HttpServer::Impl {
 public:
  Impl(const Options& options, Handler handler)
      : address_(options.address),
        work_(asio::make_work_guard(io_)),
        acceptor_(asio::make_strand(io_)),
        pause_(acceptor_.get_executor()) {
    if (!options.tls.certificate.empty()) {
      tls_ = std::make_unique<HttpTls>(options.tls);
      shared_.tls = [this] { return tls_->context(); };
    }
    shared_.on_refused = options.on_refused;
    socket_mode_ = options.socket_mode;
    shared_.limits = options.limits;
    shared_.handler = std::move(handler);
    shared_.on_gone = [this](HttpConnection* connection) { forget(connection); };
    listen();
    accept();
    const unsigned cores = std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads);
    const unsigned threads = options.threads != 0 ? options.threads : cores;
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { io_.run(); });
  }

  ~Impl() {
    shutdown(std::chrono::milliseconds(0));
    work_.reset();
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
    const bool made_file = address_.kind == service::Address::Kind::unix_socket && address_.inherited_fd < 0;
    if (made_file) unlink(address_.path.c_str());
  }

  const service::Address& address() const { return address_; }

  void drain() {
    asio::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
    });
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    for_each([](HttpConnection& connection) { connection.drain(); });
  }

  void shutdown(std::chrono::milliseconds grace) {
    drain();
    std::unique_lock lock(mutex_);
    const auto none = [this] { return connections_.empty(); };
    if (gone_.wait_for(lock, grace, none)) return;
    lock.unlock();
    for_each([](HttpConnection& connection) { connection.close(); });
    lock.lock();
    gone_.wait(lock, none);
  }

 private:
  void listen() {
    if (address_.inherited_fd >= 0) return adopt();
    const bool is_unix = address_.kind == service::Address::Kind::unix_socket;
    if (is_unix) service::claim_socket_path(address_.path);
    const auto endpoint = endpoint_of(io_, address_);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error && !is_unix) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    const mode_t previous = umask(0177);
    if (!error) acceptor_.bind(endpoint, error);
    umask(previous);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) cannot_listen(address_, error.message());
    if (is_unix) return service::set_socket_mode(address_.path, socket_mode_);
    tcp::endpoint bound;
    const auto local = acceptor_.local_endpoint();
    bound.resize(local.size());
    std::copy_n(static_cast<const char*>(static_cast<const void*>(local.data())), local.size(),
                static_cast<char*>(static_cast<void*>(bound.data())));
    address_.port = bound.port();
  }

  // Accepts from a socket that listens already, and owns it.
  void adopt() {
    const bool is_unix = address_.kind == service::Address::Kind::unix_socket;
    const bool is_v6 = address_.host.find(':') != std::string::npos;
    const int family = is_unix ? AF_UNIX : is_v6 ? AF_INET6 : AF_INET;
    error_code error;
    acceptor_.assign(asio::generic::stream_protocol(family, 0), address_.inherited_fd, error);
    if (error) cannot_listen(address_, error.message());
  }

  // On the acceptor's strand, but for the first.
  void accept() {
    auto socket = std::make_shared<HttpConnection::Socket>(asio::make_strand(io_));
    acceptor_.async_accept(*socket, [this, socket](const error_code& error) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      if (error) {
        warn_of(error);
        return pause_and_accept();
      }
      take(std::move(*socket));
      accept();
    });
  }

  void warn_of(const error_code& error) {
    const auto now = std::chrono::steady_clock::now();
    if (warned_ && now - *warned_ < kWarnInterval) return;
    warned_ = now;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    spdlog::warn(
        "HTTP: new clients wait: {}; the limit of open files and sockets is {} (ulimit -n, or LimitNOFILE= "
        "of "
        "a systemd unit)",
        error.message(), limit.rlim_cur);
  }

  void pause_and_accept() {
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](const error_code& error) {
      if (!error) accept();
    });
  }

  void take(HttpConnection::Socket socket) {
    std::unique_lock lock(mutex_);
    if (stopping_) return;
    if (connections_.size() >= shared_.limits.connections) {
      lock.unlock();
      if (tls_ != nullptr) return;
      error_code ignored;
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(kFull), ignored);
      return;
    }
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), shared_);
    connections_[connection.get()] = connection;
    lock.unlock();
    connection->start();
  }

  void forget(HttpConnection* connection) {
    const std::lock_guard lock(mutex_);
    connections_.erase(connection);
    gone_.notify_all();
  }

  template <typename Use>
  void for_each(Use use) {
    std::vector<std::shared_ptr<HttpConnection>> alive;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [connection, weak] : connections_) alive.push_back(weak.lock());
    }
    for (const auto& connection : alive) {
      if (connection != nullptr) use(*connection);
    }
  }

  service::Address address_;
  mode_t socket_mode_ = 0600;
  std::unique_ptr<HttpTls> tls_;  // null: none
  HttpShared shared_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable gone_;
  std::map<HttpConnection*, std::weak_ptr<HttpConnection>> connections_;
  bool stopping_ = false;

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  Acceptor acceptor_;
  std::optional<std::chrono::steady_clock::time_point> warned_;  // the acceptor's strand's own, as pause_
  asio::steady_timer pause_;
  std::vector<std::thread> threads_;
};

HttpServer::HttpServer(const Options& options, Handler handler)
    : impl_(std::make_unique<Impl>(options, std::move(handler))) {}

HttpServer::~HttpServer() = default;

const service::Address& HttpServer::address() const { return impl_->address(); }

void HttpServer::drain() { impl_->drain(); }

void HttpServer::shutdown(std::chrono::milliseconds grace) { impl_->shutdown(grace); }

}  // namespace ete::front
