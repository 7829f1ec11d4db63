#pragma once

#include <chrono>
#include <mutex>
#include <optional>

#include "services/common/address.h"
#include "services/common/server.h"
#include "services/front/engine_client.h"
#include "services/front/generation_service.h"
#include "services/front/limits.h"

namespace ete::front {

// A listening front: ete-front without its flags and signals. Construction and shutdown belong to one thread.
class FrontServer {
 public:
  // std::runtime_error when it cannot listen. most_unread: how long a client may leave what it asked for
  // unread.
  FrontServer(const service::Address& worker, const service::Address& listen,
              std::chrono::milliseconds most_unread = kMostUnread);
  ~FrontServer();

  const service::Address& address() const { return server_->address(); }
  // Health turns NOT_SERVING; running calls may take `grace` to end and are cancelled then.
  void shutdown(std::chrono::milliseconds grace);

 private:
  void worker_changed(bool serving);

  std::mutex mutex_;      // guards what follows and what health says
  bool serving_ = false;  // the worker is there
  bool stopping_ = false;
  service::ListeningServer* listening_ = nullptr;

  EngineClient client_;
  GenerationService generation_;
  std::optional<service::ListeningServer> server_;
};

}  // namespace ete::front
