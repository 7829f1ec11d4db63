#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "services/common/address.h"
#include "services/common/tls.h"
#include "services/front/http/exchange.h"
#include "services/front/http/http_connection.h"

namespace ete::front {

// Listens for HTTP/1.1 from construction on, on a TCP port or a Unix socket, through TLS or not. A few
// threads serve all connections. Construction and shutdown belong to one thread.
class HttpServer {
 public:
  struct Options {
    service::Address address;
    HttpLimits limits = {};
    unsigned threads = 0;  // 0: one a core, at most 4
    service::TlsFiles tls = {};
    mode_t socket_mode = 0600;
    std::function<void(const std::string& reason, const std::string& peer)> on_refused =
        [](const auto&, const auto&) {};  // by TLS
  };
  // Called on the server's threads, once a request.
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;

  // std::runtime_error naming the address when it cannot listen, or the TLS file that cannot be used.
  HttpServer(const Options& options, Handler handler);
  ~HttpServer();  // shutdown, without grace
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that the system chose when 0 was asked for.
  const service::Address& address() const;
  // Takes no more connections, ends those between two requests, the others behind their response.
  void drain();
  // Besides: gives responses `grace` to end and ends the rest. Returns when no handler holds an exchange any
  // more.
  void shutdown(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ete::front
