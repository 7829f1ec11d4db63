#include <algorithm>
#include <exception>

#include "engine/runtime/engine_impl.h"

// Sessions leave the engine from the prefix cache, and come back into it.

namespace ete {

SessionImageSizes EngineImpl::image_sizes() const {
  return {.context = placement_.context,
          .vocab_size = files_.config.vocab_size,
          .position_bytes = kv_->bytes_per_token(),
          .state_bytes = states_->session_bytes()};
}

void EngineImpl::snapshot(std::string salt, std::vector<int32_t> ids,
                          std::function<void(SessionImage image, const Error* error)> done) {
  submit(SnapshotCommand{std::move(salt), std::move(ids), std::move(done)});
}

void EngineImpl::restore(std::string salt, SessionImage image,
                         std::function<void(int64_t positions, const Error* error)> done) {
  submit(RestoreCommand{std::move(salt), std::move(image), std::move(done)});
}

void EngineImpl::process(SnapshotCommand& command) {
  try {
    command.done(take_image(command), nullptr);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    command.done({}, &error);
  }
}

void EngineImpl::process(RestoreCommand& command) {
  try {
    command.done(put_image(command), nullptr);
  } catch (const std::exception& exception) {
    const Error error = as_error(exception);
    command.done(0, &error);
  }
}

void EngineImpl::check_images() const {
  if (fatal_) throw *fatal_;
  if (!prefixes_) {
    throw Error(ErrorCode::failed_precondition,
                "session: nothing is cached (--prefix-cache 0), so none can be kept or brought back");
  }
}

// Parts of pages that lie together in an image too, with their place in it.
void EngineImpl::for_each_part(const SessionKv& kv, int64_t positions,
                               const std::function<void(std::byte*, size_t at, size_t bytes)>& call) const {
  const KvLayout& layout = kv_->layout();
  const uint64_t page_bytes = kv_->bytes_for(1);
  const size_t row = static_cast<size_t>(layout.head_dim) * size_of(layout.type);
  const size_t plane = static_cast<size_t>(kKvTile) * row;
  size_t at = 0;
  for (int64_t page = 0; page * kKvTile < positions; ++page) {
    const auto rows = static_cast<size_t>(std::min(positions - page * kKvTile, kKvTile));
    if (rows == static_cast<size_t>(kKvTile)) {
      call(kv.page(page), at, page_bytes);
      at += page_bytes;
      continue;
    }
    for (size_t begin = 0; begin < page_bytes; begin += plane) {
      call(kv.page(page) + begin, at, rows * row);
      at += rows * row;
    }
  }
}

// Sessions of the salt that wait for their next step count as cached. Cached positions are not written any
// more, so a pass may run meanwhile.
SessionImage EngineImpl::take_image(SnapshotCommand& command) {
  check_images();
  check_session_image({.ids = command.ids}, image_sizes());
  for (const auto& [id, session] : sessions_) {
    const bool at_rest =
        !session->busy && !session->in_pass && !session->is_spoilt && !session->leaving && !session->parked;
    if (at_rest && session->cache_salt == command.salt) cache_prefix(*session);
  }
  const PrefixCache::Prefix found = prefixes_->find(command.salt, command.ids, std::ssize(command.ids));
  SessionImage image{.ids = std::move(command.ids), .positions = found.length};
  if (found.length == 0) return image;
  const auto stream = device_->create_stream("ete session image");
  image.keys_values.resize(static_cast<uint64_t>(found.length) * kv_->bytes_per_token());
  for_each_part(found.kv, found.length, [&](std::byte* part, size_t at, size_t bytes) {
    device_->copy_async(*stream, image.keys_values.data() + at, part, bytes);
  });
  image.state.resize(states_->session_bytes());
  if (!image.state.empty()) {
    device_->copy_async(*stream, image.state.data(), found.state.state(), image.state.size());
  }
  stream->synchronize();
  return image;
}

int64_t EngineImpl::put_image(RestoreCommand& command) {
  check_images();
  const SessionImage& image = command.image;
  check_session_image(image, image_sizes());
  if (image.positions == 0) return 0;
  EngineSession session;
  make_kv_room(0, image.positions);
  session.ids = image.ids;
  if (const auto error = lack_of_memory(session, {.prefill_rows = image.positions})) throw Error(*error);
  const auto stream = device_->create_stream("ete session image");
  for_each_part(session.kv, image.positions, [&](std::byte* part, size_t at, size_t bytes) {
    device_->copy_async(*stream, part, image.keys_values.data() + at, bytes);
  });
  if (!image.state.empty()) {
    device_->copy_async(*stream, session.state.state(), image.state.data(), image.state.size());
  }
  stream->synchronize();
  states_->commit(session.state, image.positions, 0);
  const auto ids = std::span<const int32_t>(image.ids).first(static_cast<size_t>(image.positions));
  prefixes_->insert(command.salt, ids, session.kv, session.state);
  return prefixes_->find(command.salt, ids, image.positions).length;
}

}  // namespace ete
