#include "services/front/front_server.h"

#include <algorithm>

namespace ete::front {
namespace {

constexpr std::chrono::milliseconds kShutdownGrace{500};  // for the short calls

}  // namespace

FrontServer::FrontServer(const service::Address& worker, const service::Address& listen,
                         std::chrono::milliseconds most_unread, const std::optional<Http>& http,
                         int most_requests)
    : requests_(most_requests),
      client_(worker, [this](bool serving) { worker_changed(serving); }),
      generation_({client_, texts_, requests_}, chats_, most_unread) {
  const service::ListenOptions options{.address = listen,
                                       .max_receive_bytes = kMostMessageBytes,
                                       .max_streams = kMostStreamsPerConnection,
                                       .max_buffer_bytes = kMostBufferBytes};
  server_.emplace(options, std::vector<grpc::Service*>{&generation_});
  if (http) {
    HttpServer::Options settings{.address = http->listen};
    settings.limits.unread = most_unread;
    openai_.emplace(OpenAiHost{{client_, texts_, requests_}, chats_}, http->origins);
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
