#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "services/common/access.h"
#include "services/common/address.h"
#include "services/common/server.h"
#include "services/front/generation_service.h"
#include "services/front/http/http_server.h"
#include "services/front/http/openai_service.h"
#include "services/front/limits.h"
#include "services/front/metrics.h"
#include "services/front/worker_pool.h"

namespace ete::front {

// A listening front: ete-front without its flags and signals. Construction and shutdown belong to one thread.
class FrontServer {
 public:
  struct Http {
    service::Address listen;
    std::vector<std::string> origins;  // of web pages that are answered, beside this machine's
  };

  struct Options {
    WorkerPool::Options workers;
    service::Address listen;
    // How long a client may leave what it asked for unread.
    std::chrono::milliseconds most_unread = kMostUnread;
    int most_requests = kMostRequests;  // that run or wait
    std::optional<Http> http = std::nullopt;
    // Of both listeners.
    service::TlsFiles tls = {};
    std::string token_file = {};  // empty: everybody may call
    mode_t socket_mode = 0600;
    std::optional<service::Address> control = std::nullopt;
  };

  // std::runtime_error when it cannot listen, or a file cannot be used.
  explicit FrontServer(const Options& options);
  ~FrontServer();

  const service::Address& address() const { return server_->address(); }
  // When it serves HTTP.
  const service::Address& http_address() const { return http_->address(); }
  // Health turns NOT_SERVING; running calls may take `grace` to end and are cancelled then.
  void shutdown(std::chrono::milliseconds grace);

 private:
  void worker_changed(bool serving);

  std::mutex mutex_;      // guards what follows and what health says
  bool serving_ = false;  // the worker is there
  bool stopping_ = false;
  service::ListeningServer* listening_ = nullptr;

  Metrics metrics_;
  service::Access access_;
  RequestRegistry requests_;  // some requests end with the sessions of the workers
  WorkerPool workers_;
  TextPool texts_;  // the jobs of both, as the next, belong to calls: those have ended before they do
  ChatRenderer chats_;
  GenerationService generation_;
  std::optional<service::ListeningServer> server_;
  std::optional<OpenAiService> openai_;
  std::optional<HttpServer> http_;
};

}  // namespace ete::front
