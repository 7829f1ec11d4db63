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
  forget_lingering(stream);
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

size_t SessionRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return streams_.size();
}

std::vector<std::shared_ptr<SessionStream>> SessionRegistry::linger(const SessionStream* stream,
                                                                    size_t bytes) {
  // What a call takes beside its replies.
  constexpr size_t kCallBytes = 16 << 10;
  std::vector<std::shared_ptr<SessionStream>> abandoned;
  const std::lock_guard lock(mutex_);
  if (!streams_.contains(stream) || lingering_of_.contains(stream)) return abandoned;
  lingering_of_[stream] = lingering_.insert(lingering_.end(), {stream, bytes + kCallBytes});
  lingering_bytes_ += bytes + kCallBytes;
  while (lingering_bytes_ > kMaxLingeringBytes && lingering_.size() > 1) {
    abandoned.push_back(streams_.at(lingering_.front().stream));
    forget_lingering(lingering_.front().stream);
  }
  return abandoned;
}

void SessionRegistry::forget_lingering(const SessionStream* stream) {
  const auto found = lingering_of_.find(stream);
  if (found == lingering_of_.end()) return;
  lingering_bytes_ -= found->second->bytes;
  lingering_.erase(found->second);
  lingering_of_.erase(found);
}

bool SessionRegistry::wait_empty(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  return left_.wait_for(lock, timeout, [this] { return streams_.empty(); });
}

}  // namespace ete::worker
