#include "services/worker/session_registry.h"

#include <utility>

#include "services/worker/session_stream.h"

namespace ete::worker {

void SessionRegistry::enter(std::shared_ptr<SessionStream> stream) {
  const std::lock_guard lock(mutex_);
  const SessionStream* key = stream.get();
  streams_.emplace(key, std::move(stream));
}

void SessionRegistry::leave(const SessionStream* stream) {
  std::shared_ptr<SessionStream>
      leaving;  // outlives the lock: its destructor is not for this mutex to wait on
  const std::lock_guard lock(mutex_);
  if (const auto found = streams_.find(stream); found != streams_.end()) {
    leaving = std::move(found->second);
    streams_.erase(found);
  }
  left_.notify_all();
}

bool SessionRegistry::claim(const std::string& request_id, const SessionStream* stream) {
  const std::lock_guard lock(mutex_);
  return by_request_id_.emplace(request_id, stream).second;
}

void SessionRegistry::release(const std::string& request_id, const SessionStream* stream) {
  const std::lock_guard lock(mutex_);
  const auto found = by_request_id_.find(request_id);
  if (found != by_request_id_.end() && found->second == stream) by_request_id_.erase(found);
}

std::shared_ptr<SessionStream> SessionRegistry::find(const std::string& request_id) const {
  const std::lock_guard lock(mutex_);
  const auto found = by_request_id_.find(request_id);
  if (found == by_request_id_.end()) return nullptr;
  const auto stream = streams_.find(found->second);
  return stream == streams_.end() ? nullptr : stream->second;
}

std::vector<std::shared_ptr<SessionStream>> SessionRegistry::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<SessionStream>> streams;
  for (const auto& [key, stream] : streams_) streams.push_back(stream);
  return streams;
}

bool SessionRegistry::wait_empty(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, timeout, [this] { return streams_.empty(); });
}

}  // namespace ete::worker
