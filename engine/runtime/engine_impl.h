#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "engine/device/device_arena.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/engine_session.h"
#include "engine/runtime/pass_runner.h"
#include "engine/runtime/planner.h"
#include "engine/runtime/scheduler.h"
#include "engine/runtime/throughput.h"
#include "engine/state/prefix_cache.h"

namespace ete {

// What tests and benchmarks may ask of an engine beyond its options: faults and times made visible. Results
// are the same bits either way.
struct EngineTuning {
  bool poison_released_slots = false;
  ArenaMode arena = ArenaMode::single;
  std::optional<uint64_t> kv_budget = {};           // bytes, in place of the planned ones
  std::optional<uint64_t> state_budget = {};        // likewise
  std::optional<int64_t> kv_half_pages = {};        // of the window on a KV cache in host memory, likewise
  std::optional<int64_t> state_half_sessions = {};  // of the window on recurrent states, likewise
  Timeline* timeline = nullptr;                     // where copies and layers are marked; outlives the engine
  bool record_launches = true;                      // where the plan does
  std::optional<int> launch = {};                   // Ops::take_launch(), in place of measuring
};

std::unique_ptr<Engine> load_engine(const EngineOptions& options, const LoadProgress& progress,
                                    const EngineTuning& tuning);

// A model whose files are open and whose placement is decided.
struct PreparedModel {
  ParsedOptions options;
  ModelFiles files;
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  ModelWeights weights;
  PlannedEngine planned;
};
PreparedModel prepare_model(const EngineOptions& options);
// On this device, whatever the options name.
PreparedModel prepare_model(const EngineOptions& options, std::unique_ptr<Device> device,
                            std::unique_ptr<Ops> ops);

constexpr const char* kStopping = "the engine is stopping";

// What is no Error of ours is a lack of memory or a fault: it ends the session, not the engine.
Error as_error(const std::exception& exception);

class EngineImpl final : public Engine, private PassHooks {
 public:
  EngineImpl(PreparedModel prepared, const LoadProgress& progress, const EngineTuning& tuning);
  ~EngineImpl() override;

  const Plan& plan() const override { return plan_; }
  const ModelConfig& config() const override { return files_.config; }
  const ModelFiles& files() const override { return files_; }
  EngineStatus status() const override;
  std::optional<Error> fatal_error() const override;
  SessionId open(OpenRequest request, std::shared_ptr<SessionListener> listener) override;
  void step(SessionId session, StepRequest request) override;
  void fetch_row(SessionId session, int64_t position,
                 std::function<void(std::vector<float> row, const Error* error)> done) override;
  void close(SessionId session, bool quiet) override;
  SessionImageSizes image_sizes() const override;
  void snapshot(std::string salt, std::vector<int32_t> ids,
                std::function<void(SessionImage image, const Error* error)> done) override;
  void restore(std::string salt, SessionImage image,
               std::function<void(int64_t positions, const Error* error)> done) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct OpenCommand {
    SessionId id;
    OpenRequest request;
    std::shared_ptr<SessionListener> listener;
    Clock::time_point submitted;
  };
  struct StepCommand {
    SessionId id;
    StepRequest request;
    Clock::time_point submitted;
  };
  struct FetchCommand {
    SessionId id;
    int64_t position;
    std::function<void(std::vector<float>, const Error*)> done;
  };
  struct CloseCommand {
    SessionId id;
    bool quiet;
  };
  struct SnapshotCommand {
    std::string salt;
    std::vector<int32_t> ids;
    std::function<void(SessionImage, const Error*)> done;
    bool may_compute = true;                 // the last few ids
    std::optional<double> waits_until_ms{};  // for a place to do it in
  };
  class LastIds;
  struct RestoreCommand {
    std::string salt;
    SessionImage image;
    std::function<void(int64_t, const Error*)> done;
  };
  using Command =
      std::variant<OpenCommand, StepCommand, FetchCommand, CloseCommand, SnapshotCommand, RestoreCommand>;

  void load(const PreparedModel& prepared, const LoadProgress& progress, const EngineTuning& tuning);
  void make_kv_access(const EngineTuning& tuning);
  void make_recurrence(const EngineTuning& tuning);
  void note_repacking();
  void note_unpinned();
  void warm_up();

  void submit(Command command);
  void loop();
  void wait(std::optional<double> wake_at_ms, uint64_t slots_seen);
  bool process_commands();
  void process(OpenCommand& command);
  void process(StepCommand& command);
  void process(FetchCommand& command);
  void process(CloseCommand& command);
  void process(SnapshotCommand& command);
  void process(RestoreCommand& command);
  void open_session(OpenCommand& command);
  void take_place(EngineSession& session, int64_t prompt_rows);
  int64_t share_fork(const OpenRequest& request, EngineSession* session);
  void submit_step(EngineSession& session, StepCommand& command);
  void begin_work(EngineSession& session, Clock::time_point submitted, std::span<const int32_t> ids,
                  WantedRows rows, int64_t last_rows);

  void admit(EngineSession& session);
  void admit_late();
  void reuse_prefix(EngineSession& session);
  bool deliver_known();
  void give_known_row(EngineSession& session);
  void cache_prefix(EngineSession& session, bool with_row = false);
  void cache_after_pass(EngineSession& session, bool had_prompt_rows);
  void cache_at_end(EngineSession& session);

  void check_fits(int64_t to) const;
  void make_kv_room(int64_t held, int64_t to);
  std::optional<Error> lack_of_memory(EngineSession& session, const PassShare& share);
  bool reserve(EngineSession& session, const PassShare& share);
  EngineSession* last_behind(const EngineSession& session) const;
  void park(EngineSession& session);
  void begin_again(EngineSession& session);
  void schedule_rest(const EngineSession& session);
  void note_computed(EngineSession& session, const PassShare& share);

  void check_images() const;
  PrefixCache::Prefix find_image(const SnapshotCommand& command);
  PrefixCache::Row row_after(const EngineSession& session, std::span<const int32_t> ids);
  bool is_put_off(SnapshotCommand& command);
  void process_put_off(bool all);
  std::optional<double> or_put_off(std::optional<double> wake_at_ms) const;
  void compute_rest(SnapshotCommand& command, int64_t known);
  SessionImage take_image(SnapshotCommand& command, const PrefixCache::Prefix& found);
  int64_t put_image(RestoreCommand& command);
  void for_each_part(const SessionKv& kv, int64_t positions,
                     const std::function<void(std::byte*, size_t at, size_t bytes)>& call) const;

  bool run_pass(std::vector<PassShare> shares, double decided_ms, bool slots_full);
  bool lack_memory(std::vector<PassShare>& shares, Scheduler::LeftOut* lacking);
  std::vector<PassShare> in_order(std::vector<PassShare> shares);
  void add_to_pass(const PassShare& share);
  void finish_pass(const std::vector<PassShare>& shares, double start_ms, double end_ms);
  void fail_pass(const Error& failed);
  std::optional<Error> row_error(const EngineSession& session, int64_t from, int64_t end) const;
  void deliver(EngineSession& session);
  void tell_progress(EngineSession& session);
  void watch_slots();
  bool watches_link() const;
  void begin_watching_link();
  void end_watching_link();
  void at_boundary() override;
  void dropped(SessionId id) override;
  PassSession* in_pass(SessionId id);

  EngineSession* find(SessionId id);
  void leave(SessionId id, const std::optional<Error>& error);
  void end_session(SessionId id, const Error* error);
  void update_status();
  double now_ms() const { return std::chrono::duration<double, std::milli>(Clock::now() - epoch_).count(); }

  // In the order of making; destruction is the reverse. What callers and the device's streams touch comes
  // first: a notice of the copy stream may be on its way when the streams are ended.
  std::atomic<SessionId> next_id_{1};
  mutable std::mutex mutex_;  // guards the rest of this group
  std::condition_variable changed_;
  std::vector<Command> queue_;
  bool stopping_ = false;
  uint64_t slots_full_generation_ = 0;
  EngineStatus status_;
  std::optional<Error> fatal_;  // written by the engine thread only

  Clock::time_point epoch_ = Clock::now();
  ModelFiles files_;
  Plan plan_;
  Placement placement_;
  Timeline link_timeline_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<DeviceArena> arena_;
  std::unique_ptr<WeightStore> store_;
  PassStreams streams_;
  Vocabulary vocabulary_;
  std::unique_ptr<LayerStreamer> streamer_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
  std::unique_ptr<KvAccess> kv_access_;
  std::unique_ptr<RecurrentStore> states_;
  std::unique_ptr<Recurrence> recurrence_;
  std::unique_ptr<HostRows> host_rows_;    // null: PassRows::host_rows
  std::unique_ptr<PrefixCache> prefixes_;  // null: nothing is cached
  std::unique_ptr<PassRunner> runner_;

  // Of the engine thread.
  Scheduler scheduler_;
  Throughput throughput_;
  std::unordered_map<SessionId, std::unique_ptr<EngineSession>> sessions_;
  std::vector<PassSession> pass_;                  // empty between passes
  std::unordered_set<SessionId> parked_for_pass_;  // by the sessions of the newest one
  std::vector<SnapshotCommand> put_off_;
  uint64_t slots_generation_ = 0;
  EngineStatus counters_;
  bool own_timeline_ = false;  // link_timeline_ is the one that is marked

  std::thread thread_;
};

}  // namespace ete
