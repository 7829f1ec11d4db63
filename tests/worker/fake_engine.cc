#include "tests/worker/fake_engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ete {

Plan FakeEngine::fake_plan(const FakeEngineOptions& options) {
  Plan plan;
  plan.device_name = "fake";
  plan.context = options.context;
  plan.max_sessions = 16;
  return plan;
}

ModelFiles FakeEngine::fake_files(const FakeEngineOptions& options) {
  ModelFiles files;
  files.config.name = "fake";
  files.config.architecture = "FakeForCausalLM";
  files.config.vocab_size = options.vocab_size;
  files.config.eos_token_ids = {2, 3};
  files.tokenizer_files.files["tokenizer.json"] = "{}";
  return files;
}

FakeEngine::FakeEngine(const FakeEngineOptions& options)
    : options_(options), plan_(fake_plan(options)), files_(fake_files(options)), thread_([this] { run(); }) {}

FakeEngine::~FakeEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  for (auto& [id, session] : sessions_)
    session.listener->on_error(Error(ErrorCode::cancelled, "the engine ends"));
}

EngineStatus FakeEngine::status() const {
  const std::lock_guard lock(mutex_);
  EngineStatus status;
  status.sessions = static_cast<int>(sessions_.size());
  status.passes = static_cast<uint64_t>(steps_);
  status.kv_bytes = 512 + 512 * sessions_.size();
  status.prefix_bytes = 2048;
  status.prefix_lookups = 5;
  status.prefix_hits = 4;
  status.reused_tokens = 300;
  status.queued = 6;
  status.queued_tokens = 7;
  status.pass_ms = 1250;
  status.last_pass_ms = 10;
  status.last_pass_rows = 11;
  status.decode_rows = 12;
  status.prefill_rows = 13;
  status.link_bytes = 14;
  status.device_bytes = 15;
  status.link_idle_share = 0.375;
  return status;
}

std::optional<Error> FakeEngine::fatal_error() const {
  const std::lock_guard lock(mutex_);
  return fatal_error_;
}

SessionId FakeEngine::open(OpenRequest request, std::shared_ptr<SessionListener> listener) {
  SessionId id = 0;
  bool fork_missing = false;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
    if (request.fork_of != 0 && !sessions_.contains(request.fork_of)) fork_missing = true;
    sessions_[id].listener = listener;
    open_requests_.push_back(request);
  }
  if (const auto refusal = this->refusal()) {
    submit([listener, refusal] { listener->on_error(*refusal); }, true);
    return id;
  }
  if (fork_missing) {
    submit(
        [listener, fork = request.fork_of] {
          listener->on_error(
              Error(ErrorCode::not_found, "fork_of: session " + std::to_string(fork) + " is not live"));
        },
        true);
    return id;
  }
  if (!request.prompt_ids.empty()) {
    submit(
        [this, id, request = std::move(request)] {
          answer(id, 0, request.prompt_ids, 0, request.rows, request.wanted);
        },
        true);
    // Time for what the answer set off.
    if (options_.inside_calls) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return id;
}

void FakeEngine::snapshot(std::string /*salt*/, std::vector<int32_t> ids,
                          std::function<void(SessionImage image, const Error* error)> done) {
  submit(
      [ids = std::move(ids), done = std::move(done)] {
        SessionImage image{.ids = ids, .positions = std::ssize(ids) - 1};
        image.keys_values.assign(2 * (ids.size() - 1), 'k');
        done(std::move(image), nullptr);
      },
      false);
}

void FakeEngine::restore(std::string /*salt*/, SessionImage image,
                         std::function<void(int64_t positions, const Error* error)> done) {
  submit([positions = image.positions, done = std::move(done)] { done(positions, nullptr); }, false);
}

void FakeEngine::step(SessionId id, StepRequest request) {
  submit(
      [this, id, request = std::move(request)] {
        {
          const std::lock_guard lock(mutex_);
          step_requests_.push_back(request);
        }
        answer(id, request.position, request.ids, request.n_draft, request.rows, request.wanted);
      },
      true);
}

void FakeEngine::fetch_row(SessionId id, int64_t position,
                           std::function<void(std::vector<float>, const Error*)> done) {
  submit(
      [this, id, position, done = std::move(done)] {
        int64_t length = 0;
        {
          const std::lock_guard lock(mutex_);
          const auto found = sessions_.find(id);
          if (found != sessions_.end()) length = found->second.length;
        }
        if (position != length - 1) {
          const Error error(ErrorCode::failed_precondition, "fetch_row.position: no row is kept there");
          return done({}, &error);
        }
        std::vector<float> row(static_cast<size_t>(options_.vocab_size));
        std::iota(row.begin(), row.end(), 0.0f);
        done(std::move(row), nullptr);
      },
      true);
}

void FakeEngine::close(SessionId id, bool quiet) {
  std::shared_ptr<SessionListener> listener;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    listener = std::move(found->second.listener);
    sessions_.erase(found);
  }
  submit(
      [listener, quiet] {
        if (!quiet) listener->on_error(Error(ErrorCode::cancelled, "closed"));
      },
      false);
}

void FakeEngine::hold(bool held) {
  {
    const std::lock_guard lock(mutex_);
    held_ = held;
  }
  wake_.notify_one();
}

void FakeEngine::tell_progress(const StepProgress& progress) {
  std::vector<std::shared_ptr<SessionListener>> listeners;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, session] : sessions_) listeners.push_back(session.listener);
  }
  for (const auto& listener : listeners) listener->on_progress(progress);
}

void FakeEngine::refuse_opens(const Overloaded& error) {
  const std::lock_guard lock(mutex_);
  refusal_ = error;
}

std::optional<Overloaded> FakeEngine::refusal() const {
  const std::lock_guard lock(mutex_);
  return refusal_;
}

void FakeEngine::fail_steps(const Error& error) {
  const std::lock_guard lock(mutex_);
  step_error_ = error;
}

void FakeEngine::fail_for_good(const Error& error) {
  const std::lock_guard lock(mutex_);
  fatal_error_ = error;
}

int FakeEngine::live() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(sessions_.size());
}

int FakeEngine::opened() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(next_id_ - 1);
}

int FakeEngine::steps() const {
  const std::lock_guard lock(mutex_);
  return steps_;
}

std::vector<OpenRequest> FakeEngine::open_requests() const {
  const std::lock_guard lock(mutex_);
  return open_requests_;
}

std::vector<StepRequest> FakeEngine::step_requests() const {
  const std::lock_guard lock(mutex_);
  return step_requests_;
}

void FakeEngine::submit(Work work, bool waits_when_held) {
  if (options_.inside_calls) return work();
  {
    const std::lock_guard lock(mutex_);
    (waits_when_held ? held_work_ : work_).push_back(std::move(work));
  }
  wake_.notify_one();
}

void FakeEngine::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !work_.empty() || (!held_ && !held_work_.empty()); });
    if (stopping_) return;
    std::deque<Work>& queue = work_.empty() ? held_work_ : work_;
    Work work = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

void FakeEngine::answer(SessionId id, int64_t position, const std::vector<int32_t>& ids, int64_t n_draft,
                        WantedRows rows, const LogitsWanted& wanted) {
  std::shared_ptr<SessionListener> listener;
  std::optional<Error> error;
  StepResult result;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    Session& session = found->second;
    listener = session.listener;
    error = step_error_;
    if (!error && position > session.length) {
      error =
          Error(ErrorCode::invalid_argument, "position: " + std::to_string(position) +
                                                 " is past the session's " + std::to_string(session.length));
    }
    session.length = position + static_cast<int64_t>(ids.size());
    result.length = session.length;
    ++steps_;
  }
  if (error) return listener->on_error(*error);
  const auto count = static_cast<int64_t>(ids.size());
  const int64_t wanted_rows = rows == WantedRows::all ? count : rows == WantedRows::last ? n_draft + 1 : 0;
  result.position = position + count - wanted_rows;
  for (int64_t i = count - wanted_rows; i < count; ++i) {
    result.rows.push_back(make_row(ids[static_cast<size_t>(i)], wanted));
  }
  listener->on_result(std::move(result));
}

LogitsRow FakeEngine::make_row(int32_t last, const LogitsWanted& wanted) const {
  LogitsRow row;
  for (int64_t i = 1; i <= wanted.top_k; ++i) {
    row.top_ids.push_back(static_cast<int32_t>((last + i) % options_.vocab_size));
    row.top_logits.push_back(static_cast<float>(-i));
  }
  for (const int32_t id : wanted.extra_ids) row.extra_logits.push_back(static_cast<float>(id));
  row.max_logit = -1;
  row.logsumexp = wanted.temperature;
  if (wanted.full_row) {
    row.full.resize(static_cast<size_t>(options_.vocab_size));
    std::iota(row.full.begin(), row.full.end(), 0.0f);
  }
  return row;
}

}  // namespace ete
