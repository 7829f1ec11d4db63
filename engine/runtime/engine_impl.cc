#include "engine/runtime/engine_impl.h"

#include <cstdio>
#include <utility>

#include "engine/base/check.h"
#include "engine/runtime/admission.h"
#include "engine/runtime/byte_text.h"
#include "engine/state/streamed_recurrence.h"
#include "engine/state/tiled_kv.h"

namespace ete {

namespace {

constexpr double kMemoryWaitMs = 10;      // until those that lack memory are looked at again
constexpr double kPackedFraction = 0.98;  // of the loading; the rest is the warm-up

}  // namespace

EngineImpl::EngineImpl(PreparedModel prepared, const LoadProgress& progress, const EngineTuning& tuning)
    : files_(std::move(prepared.files)),
      plan_(std::move(prepared.planned.plan)),
      placement_(std::move(prepared.planned.placement)),
      device_(std::move(prepared.device)),
      ops_(std::move(prepared.ops)),
      scheduler_(scheduler_limits(plan_, placement_, files_.config)) {
  load(prepared, progress, tuning);
  warm_up();
  update_status();  // its page is gone
  if (progress) progress(1.0, "ready");
  thread_ = std::thread([this] { loop(); });
}

EngineImpl::~EngineImpl() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
  streamer_->reset();  // copies under way call back
}

void EngineImpl::load(const PreparedModel& prepared, const LoadProgress& progress,
                      const EngineTuning& tuning) {
  {
    ThreadPool pool(plan_.threads);
    const WeightStore::Progress report = [&](double fraction, const std::string& tensor) {
      if (progress) progress(fraction * kPackedFraction, "packing " + tensor);
    };
    store_ = std::make_unique<WeightStore>(*device_, *files_.tensors, prepared.weights, placement_.layout,
                                           pool, report, prepared.options.home);
  }
  note_repacking();
  note_unpinned();
  own_timeline_ = tuning.timeline == nullptr;
  Timeline* timeline = own_timeline_ ? &link_timeline_ : tuning.timeline;
  if (!tuning.record_launches) placement_.recorded_layers = 0;
  if (tuning.launch) {
    ops_->take_launch(*tuning.launch);
  } else {
    ops_->measure_launches(placement_.layout.formats());
  }
  arena_ = std::make_unique<DeviceArena>(*device_, placement_.arena_bytes, tuning.arena);
  ops_->set_workspace(arena_->take(placement_.workspace_bytes), placement_.workspace_bytes);
  streams_.compute = device_->create_stream("ete compute");
  streams_.copy_in = device_->create_stream("ete copy in");
  streams_.write_back = device_->create_stream("ete write back");
  vocabulary_ = place_vocabulary(*device_, *store_, placement_.vocabulary, *arena_, *streams_.copy_in);
  streamer_ =
      std::make_unique<LayerStreamer>(*device_, *store_, *arena_, *streams_.copy_in,
                                      StreamerOptions{.resident = placement_.resident,
                                                      .slots = placement_.slots,
                                                      .link_limit = prepared.options.raw.link_limit,
                                                      .whole_layers = placement_.host_rows.has_value(),
                                                      .poison_released_slots = tuning.poison_released_slots,
                                                      .timeline = timeline});
  model_ = make_model(files_.config, *ops_, *device_, *arena_, *streams_.compute);
  kv_ = std::make_unique<KvStore>(*device_,
                                  KvOptions{.layout = kv_layout(files_.config, prepared.options.kv_type),
                                            .layers = files_.config.kv_layers(),
                                            .space = placement_.kv_space,
                                            .budget_bytes = tuning.kv_budget.value_or(placement_.kv_budget)});
  make_kv_access(tuning);
  states_ = std::make_unique<RecurrentStore>(
      *device_, RecurrentOptions{.shape = files_.config.delta_net,
                                 .layers = files_.config.linear_layers(),
                                 .space = placement_.state_space,
                                 .budget_bytes = tuning.state_budget.value_or(placement_.state_budget)});
  make_recurrence(tuning);
  if (placement_.prefix_cache > 0) {
    prefixes_ = std::make_unique<PrefixCache>(*kv_, *states_, placement_.prefix_cache);
  }
  if (placement_.host_rows) {
    streams_.host_rows = device_->create_stream("ete host rows");
    host_rows_ = std::make_unique<HostRows>(*device_, *ops_, *streams_.host_rows, *placement_.host_rows);
  }
  runner_ = std::make_unique<PassRunner>(
      PassParts{*device_, *ops_, *model_, vocabulary_, *streamer_, *kv_, *kv_access_, *states_, *recurrence_,
                streams_, host_rows_.get(), timeline},
      placement_, *arena_);
}

void EngineImpl::make_kv_access(const EngineTuning& tuning) {
  if (!placement_.tiled_kv) {
    kv_access_ = std::make_unique<DirectKv>(*ops_);
    return;
  }
  streams_.kv_in = device_->create_stream("ete kv in");
  TiledKvSizes sizes = *placement_.tiled_kv;
  sizes.poison = tuning.poison_released_slots;
  sizes.half_pages = tuning.kv_half_pages.value_or(sizes.half_pages);
  kv_access_ = std::make_unique<TiledKv>(*device_, *ops_, sizes, *arena_,
                                         TiledKv::Streams{*streams_.kv_in, *streams_.write_back});
}

void EngineImpl::make_recurrence(const EngineTuning& tuning) {
  if (!placement_.streamed_states) {
    recurrence_ = std::make_unique<DirectRecurrence>(*ops_);
    return;
  }
  streams_.state_in = device_->create_stream("ete state in");
  StreamedRecurrenceSizes sizes = *placement_.streamed_states;
  sizes.half_sessions = tuning.state_half_sessions.value_or(sizes.half_sessions);
  recurrence_ = std::make_unique<StreamedRecurrence>(
      *device_, *ops_, sizes, *arena_, StreamedRecurrence::Streams{*streams_.state_in, *streams_.write_back});
}

void EngineImpl::note_unpinned() {
  const WeightStore::Unpinned& unpinned = store_->unpinned();
  if (unpinned.bytes == 0) return;
  plan_.notes.push_back(byte_text(unpinned.bytes) + " of weights could not be pinned (" + unpinned.why +
                        "): their way to the device hides behind nothing and is slower; raise the limit of "
                        "locked memory (ulimit -l) or take --home mmap");
}

void EngineImpl::note_repacking() {
  for (const RepackError& error : store_->repack_errors()) {
    char figures[96];
    std::snprintf(figures, sizeof figures, ": rms error %.3g of the tensor's rms, largest %.3g",
                  error.relative_rms, error.max_abs);
    plan_.notes.push_back(error.tensor + " as " + std::string(name_of(error.format)) + figures);
  }
}

// One prefill row and one decode row, so that pools, caches and events exist before the first request.
void EngineImpl::warm_up() {
  SessionKv kv;
  RecurrentState state;
  const int32_t id = 0;
  const LogitsWanted wanted;
  LogitsRow results[2];
  const size_t decode_rows = placement_.context > 1 ? 1 : 0;
  kv_->reserve(kv, 0, 1 + static_cast<int64_t>(decode_rows));
  states_->reserve(state, 0);
  std::vector<PassSession> pass = {{.kv = &kv,
                                    .state = &state,
                                    .prefill_ids = {&id, 1},
                                    .decode_ids = {&id, decode_rows},
                                    .wanted = &wanted,
                                    .results = results}};
  const double start_ms = now_ms();
  runner_->run(pass, *this);
  scheduler_.note_few_rows(now_ms() - start_ms);
}

EngineStatus EngineImpl::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

std::optional<Error> EngineImpl::fatal_error() const {
  std::lock_guard lock(mutex_);
  return fatal_;
}

SessionId EngineImpl::open(OpenRequest request, std::shared_ptr<SessionListener> listener) {
  const SessionId id = next_id_.fetch_add(1);
  submit(OpenCommand{id, std::move(request), std::move(listener), Clock::now()});
  return id;
}

void EngineImpl::step(SessionId session, StepRequest request) {
  submit(StepCommand{session, std::move(request), Clock::now()});
}

void EngineImpl::fetch_row(SessionId session, int64_t position,
                           std::function<void(std::vector<float> row, const Error* error)> done) {
  submit(FetchCommand{session, position, std::move(done)});
}

void EngineImpl::close(SessionId session, bool quiet) { submit(CloseCommand{session, quiet}); }

void EngineImpl::submit(Command command) {
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(command));
  }
  changed_.notify_one();
}

void EngineImpl::loop() {
  for (;;) {
    process_commands();
    process_put_off(false);
    do {
      admit_late();
    } while (deliver_known());  // one that failed made place for another
    update_status();
    uint64_t slots_seen = 0;
    {
      std::lock_guard lock(mutex_);
      if (stopping_) break;
      slots_seen = slots_full_generation_;
    }
    const double now = now_ms();
    const bool slots_full = slots_seen == slots_generation_;
    PassDecision decision = scheduler_.decide(now, slots_full);
    if (decision.shares.empty()) {
      wait(or_put_off(decision.wake_at_ms), slots_seen);
    } else if (!run_pass(std::move(decision.shares), now, slots_full)) {
      wait(now_ms() + kMemoryWaitMs, slots_seen);
    }
  }
  // What still waited is told too, and what was to come of those that end.
  const Error cancelled(ErrorCode::cancelled, kStopping);
  do {
    process_put_off(true);
    while (!sessions_.empty()) end_session(sessions_.begin()->first, &cancelled);
  } while (process_commands());
}

// slots_seen: what the decision to wait rests on. Slots that have become full since end the wait at once.
void EngineImpl::wait(std::optional<double> wake_at_ms, uint64_t slots_seen) {
  std::unique_lock lock(mutex_);
  const auto woken = [&] { return !queue_.empty() || stopping_ || slots_full_generation_ != slots_seen; };
  if (!wake_at_ms) {
    changed_.wait(lock, woken);
    return;
  }
  const auto at = epoch_ + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double, std::milli>(*wake_at_ms));
  changed_.wait_until(lock, at, woken);
}

void EngineImpl::update_status() {
  counters_.sessions = static_cast<int>(scheduler_.active());
  counters_.queued = static_cast<int>(scheduler_.waiting());
  counters_.queued_tokens = scheduler_.due_prompt_rows();
  counters_.retry_after_ms = throughput_.until_place_ms(now_ms());
  counters_.kv_bytes = kv_->used_bytes() + states_->used_bytes();
  if (prefixes_) {
    const PrefixCache::Idle idle = prefixes_->idle();
    counters_.kv_bytes -= idle.kv_bytes + idle.state_bytes;
    counters_.prefix_bytes = prefixes_->bytes();
  }
  counters_.link_bytes = streamer_->bytes_copied();
  counters_.device_bytes = device_->allocated_bytes();
  std::lock_guard lock(mutex_);
  status_ = counters_;
}

// Between passes and at the boundaries within one, in the order of arrival. What a running pass uses of a
// session stays untouched: see leave(). False: there were none.
bool EngineImpl::process_commands() {
  std::vector<Command> commands;
  {
    std::lock_guard lock(mutex_);
    commands.swap(queue_);
  }
  if (commands.empty()) return false;
  for (Command& command : commands) {
    std::visit([this](auto& held) { process(held); }, command);
  }
  update_status();
  return true;
}

EngineSession* EngineImpl::find(SessionId id) {
  const auto found = sessions_.find(id);
  return found == sessions_.end() ? nullptr : found->second.get();
}

// Ends the session now or, where the running pass uses its memory, as soon as the pass has dropped it.
void EngineImpl::leave(SessionId id, const std::optional<Error>& error) {
  EngineSession* session = find(id);
  if (session == nullptr || session->leaving) return;
  session->leaving = EngineSession::Leaving{error};
  if (PassSession* part = in_pass(id)) {
    part->cancelled = true;
  } else {
    end_session(id, nullptr);
  }
}

// Nothing uses its memory any more. How it was to leave goes before what happened since.
void EngineImpl::end_session(SessionId id, const Error* error) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  const std::unique_ptr<EngineSession> session = std::move(found->second);
  sessions_.erase(found);
  scheduler_.close(id);
  if (session->placed_ms) throughput_.place_left(*session->placed_ms, now_ms());
  runner_->forget_rows(session->kept.memory());
  cache_at_end(*session);
  if (session->leaving) error = session->leaving->error ? &*session->leaving->error : nullptr;
  if (error != nullptr) session->listener->on_error(*error);
}

}  // namespace ete
