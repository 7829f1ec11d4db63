#include "services/front/front_server.h"

#include <algorithm>

namespace ete::front {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{500};  // for the short calls

}  // namespace

FrontServer::FrontServer(const Options& options)
    : access_(options.token_file, [this] { metrics_.refused(); }),
      requests_(options.most_requests),
      workers_(options.workers, [this](bool serving) { worker_changed(serving); }),
      generation_({workers_, texts_, requests_, metrics_}, chats_, access_, options.most_unread) {
  const service::ListenOptions listen{.address = options.listen,
                                      .max_receive_bytes = kMostMessageBytes,
                                      .max_streams = kMostStreamsPerConnection,
                                      .max_buffer_bytes = kMostBufferBytes,
                                      .tls = options.tls,
                                      .socket_mode = options.socket_mode,
                                      .control = options.control};
  server_.emplace(listen, std::vector<grpc::Service*>{&generation_});
  if (options.http) {
    HttpServer::Options settings{.address = options.http->listen};
    settings.limits.unread = options.most_unread;
    settings.tls = options.tls;
    settings.socket_mode = options.socket_mode;
    settings.on_refused = [this](const std::string& reason, const std::string& peer) {
      access_.note_refused(reason, peer);
    };
    openai_.emplace(OpenAiHost{{workers_, texts_, requests_, metrics_}, chats_, access_},
                    options.http->origins);
    http_.emplace(settings,
                  [this](const std::shared_ptr<HttpExchange>& exchange) { openai_->handle(exchange); });
  }
  const std::lock_guard lock(mutex_);
  listening_ = &*server_;
  listening_->set_serving(serving_);
}

FrontServer::~FrontServer() { shutdown(std::chrono::milliseconds(0)); }

void FrontServer::worker_changed(bool serving) {
  const std::lock_guard lock(mutex_);
  serving_ = serving;
  if (listening_ != nullptr && !stopping_) listening_->set_serving(serving);
}

void FrontServer::shutdown(std::chrono::milliseconds grace) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
    listening_->set_serving(false);
  }
  const auto end = std::chrono::steady_clock::now() + grace;
  if (http_) http_->drain();
  const bool ended = generation_.drain(grace);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  if (http_) http_->shutdown(std::max(left, std::chrono::milliseconds(0)));
  server_->shutdown(ended ? std::min(grace, kShutdownGrace) : std::chrono::milliseconds(0));
}

}  // namespace ete::front
