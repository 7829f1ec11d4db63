#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "engine/runtime/engine_impl.h"

// Sessions leave the engine from the prefix cache, and come back into it.

namespace ete {

namespace {

constexpr double kPlaceWaitMs = 500;
// The drafts of a session's last step, which nobody had accepted when it ended, and the id that was drawn
// after them.
constexpr int64_t kMostLacking = kMaxDrafts + 1;

}  // namespace

SessionImageSizes EngineImpl::image_sizes() const {
  return {.context = placement_.context,
          .vocab_size = files_.config.vocab_size,
          .position_bytes = kv_->bytes_per_token(),
          .state_bytes = states_->session_bytes()};
}

void EngineImpl::snapshot(std::string salt, std::vector<int32_t> ids,
                          std::function<void(SessionImage image, const Error* error)> done) {
  submit(SnapshotCommand{.salt = std::move(salt), .ids = std::move(ids), .done = std::move(done)});
}

void EngineImpl::restore(std::string salt, SessionImage image,
                         std::function<void(int64_t positions, const Error* error)> done) {
  submit(RestoreCommand{std::move(salt), std::move(image), std::move(done)});
}

// Goes through a session of a snapshot's ids, of which all but a few are cached: it computes these one by one
// as steps would have, so that the logits after them are the same bits.
class EngineImpl::LastIds final : public SessionListener {
 public:
  LastIds(EngineImpl& engine, SnapshotCommand command) : engine_(engine), command_(std::move(command)) {
    command_.may_compute = false;
  }
  // At once, while there is a place.
  void open(int64_t known, std::shared_ptr<SessionListener> self) {
    OpenRequest request;
    request.request_id = "snapshot";
    request.prompt_ids.assign(command_.ids.begin(), command_.ids.begin() + known);
    request.cache_salt = command_.salt;
    request.rows = WantedRows::none;
    session_ = engine_.next_id_.fetch_add(1);
    OpenCommand command{session_, std::move(request), std::move(self), Clock::now()};
    engine_.process(command);
  }
  void on_result(StepResult result) override {
    if (result.length < std::ssize(command_.ids)) {
      StepRequest step;
      step.position = result.length;
      step.ids = {command_.ids[static_cast<size_t>(result.length)]};
      return engine_.step(session_, std::move(step));
    }
    take_image();
    engine_.close(session_, true);
  }
  // Without them the image is as good as any.
  void on_error(const Error& /*error*/) override { take_image(); }

 private:
  // An engine that stops may tell of an error after the last result.
  void take_image() {
    if (!std::exchange(is_taken_, true)) engine_.submit(std::move(command_));
  }

  EngineImpl& engine_;
  SnapshotCommand command_;
  SessionId session_ = 0;
  bool is_taken_ = false;
};

void EngineImpl::process(SnapshotCommand& command) {
  try {
    const PrefixCache::Prefix found = find_image(command);
    const int64_t lacking = std::ssize(command.ids) - found.length;
    const bool lacks_few = found.length > 0 && lacking > 0 && lacking <= kMostLacking;
    if (lacks_few && is_put_off(command)) return;
    if (lacks_few && command.may_compute && scheduler_.has_place())
      return compute_rest(command, found.length);
    command.done(take_image(command, found), nullptr);
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

// Sessions of the salt that wait for their next step count as cached.
PrefixCache::Prefix EngineImpl::find_image(const SnapshotCommand& command) {
  check_images();
  check_session_image({.ids = command.ids}, image_sizes());
  PrefixCache::Row row;
  for (const auto& [id, session] : sessions_) {
    const bool at_rest =
        !session->busy && !session->in_pass && !session->is_spoilt && !session->leaving && !session->parked;
    if (!at_rest || session->cache_salt != command.salt) continue;
    cache_prefix(*session);
    if (!row) row = row_after(*session, command.ids);
  }
  PrefixCache::Prefix found = prefixes_->find(command.salt, command.ids, std::ssize(command.ids));
  if (!found.row && found.length == std::ssize(command.ids)) found.row = std::move(row);
  return found;
}

// The row after these ids, when the session's newest step ended with them and no pass that failed lost it.
PrefixCache::Row EngineImpl::row_after(const EngineSession& session, std::span<const int32_t> ids) {
  const int64_t length = std::ssize(ids);
  if (session.length < length || !std::ranges::equal(ids, std::span(session.ids).first(ids.size()))) {
    return nullptr;
  }
  const float* row = session.kept.row(length - 1);
  if (row == nullptr) return nullptr;
  try {
    runner_->bring_row(row);
  } catch (const Error&) {
    return nullptr;
  }
  return std::make_shared<const std::vector<float>>(row, row + files_.config.vocab_size);
}

// A session that has ended may still have its place, and so may whoever asks, who would never give it up.
bool EngineImpl::is_put_off(SnapshotCommand& command) {
  if (!command.may_compute || scheduler_.has_place()) return false;
  if (!command.waits_until_ms) command.waits_until_ms = now_ms() + kPlaceWaitMs;
  if (now_ms() >= *command.waits_until_ms) return false;
  put_off_.push_back(std::move(command));
  return true;
}

// Those that need wait no longer; or all, as they are.
void EngineImpl::process_put_off(bool all) {
  for (SnapshotCommand& command : std::exchange(put_off_, {})) {
    command.may_compute = !all;
    if (all || scheduler_.has_place() || now_ms() >= *command.waits_until_ms) {
      process(command);
    } else {
      put_off_.push_back(std::move(command));
    }
  }
}

std::optional<double> EngineImpl::or_put_off(std::optional<double> wake_at_ms) const {
  for (const SnapshotCommand& command : put_off_) {
    wake_at_ms = std::min(wake_at_ms.value_or(*command.waits_until_ms), *command.waits_until_ms);
  }
  return wake_at_ms;
}

void EngineImpl::compute_rest(SnapshotCommand& command, int64_t known) {
  const auto listener = std::make_shared<LastIds>(*this, std::move(command));
  listener->open(known, listener);
}

// Cached positions are not written any more, so a pass may run meanwhile.
SessionImage EngineImpl::take_image(SnapshotCommand& command, const PrefixCache::Prefix& found) {
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
  if (found.row) image.logits = *found.row;
  return image;
}

int64_t EngineImpl::put_image(RestoreCommand& command) {
  check_images();
  SessionImage& image = command.image;
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
  PrefixCache::Row row;
  if (!image.logits.empty()) row = std::make_shared<const std::vector<float>>(std::move(image.logits));
  prefixes_->insert(command.salt, ids, session.kv, session.state, row);
  return prefixes_->find(command.salt, ids, image.positions).length;
}

}  // namespace ete
