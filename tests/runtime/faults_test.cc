#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <optional>
#include <thread>

#include "engine/runtime/engine_answer.h"
#include "engine/weights/safetensors_file.h"
#include "tests/runtime/engine_harness.h"
#include "tests/runtime/faulty_device.h"
#include "tests/weights/temp_dir.h"

// What goes wrong in a pass, and whom it reaches: one session (values that are no numbers), the sessions of
// the pass (a copy that failed), or all of them (a device that no longer works).

namespace ete::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int32_t kPoisonedId = 300;  // what the prompts below never hold

std::vector<int32_t> ids(int64_t length, int32_t seed = 0) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < length; ++i) result.push_back(static_cast<int32_t>((i * 29 + seed * 17) % 290 + 5));
  return result;
}

OpenRequest open_prompt(std::vector<int32_t> prompt, const std::string& request_id = "") {
  OpenRequest open;
  open.request_id = request_id;
  open.prompt_ids = std::move(prompt);
  open.wanted = want_full_row();
  return open;
}

std::string error_of(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "";
}

// A golden model one row of whose embedding is NaN: sessions without that id are sound.
class PoisonedModel {
 public:
  explicit PoisonedModel(const std::string& model) {
    const float value = std::numeric_limits<float>::quiet_NaN();
    std::filesystem::copy(model_path(model), dir_.path());
    std::string weights = ::ete::testing::read_all(dir_.file("model.safetensors"));
    for (const SourceTensor& tensor : parse_safetensors(std::as_bytes(std::span(weights)), model)) {
      if (tensor.name != "model.embed_tokens.weight") continue;
      const size_t row_bytes = static_cast<size_t>(tensor.shape[1]) * sizeof(float);
      const auto offset = static_cast<size_t>(reinterpret_cast<const char*>(tensor.data) - weights.data());
      for (size_t i = 0; i < row_bytes; i += sizeof(float)) {
        std::memcpy(weights.data() + offset + kPoisonedId * row_bytes + i, &value, sizeof value);
      }
    }
    dir_.write("model.safetensors", weights);
  }
  std::string path() const { return dir_.path(); }

 private:
  ::ete::testing::TempDir dir_;
};

// Keeps a pass under way, so that sessions that are opened meanwhile share the next one.
class BusyPass {
 public:
  explicit BusyPass(Engine& engine) : engine_(engine), session_(engine, open_prompt(ids(20, 7))) {
    while (engine.status().sessions == 0) std::this_thread::yield();
    passes_ = engine.status().passes;
  }
  void end() {
    EXPECT_EQ(engine_.status().passes, passes_) << "the pass ended before all sessions were there";
    session_.opened();
    session_.close();
  }

 private:
  Engine& engine_;
  BlockingSession session_;
  uint64_t passes_ = 0;
};

class NotFinite : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions options() const {
    EngineOptions options = with_residency(exact_options("llama_gqa"), 0, 2);
    options.model = model_.path();
    options.kernels = GetParam();
    options.link_limit = uint64_t{8} << 20;
    return options;
  }
  PoisonedModel model_{"llama_gqa"};
  std::unique_ptr<Engine> engine_ = Engine::load(options());
};

TEST_P(NotFinite, PromptEndsItsSessionOnly) {
  const Rows alone = forced_rows(*engine_, ids(30), {7});
  while (engine_->status().sessions != 0) std::this_thread::yield();
  std::vector<int32_t> bad_ids = ids(30, 3);
  bad_ids[20] = kPoisonedId;
  BusyPass busy(*engine_);
  BlockingSession bad(*engine_, open_prompt(bad_ids, "the bad one"));
  BlockingSession good(*engine_, open_prompt(ids(30)));
  busy.end();
  const uint64_t passes = engine_->status().passes;
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { bad.opened(); }),
              AllOf(HasSubstr("the bad one"), HasSubstr("session " + std::to_string(bad.id())),
                    HasSubstr("position 29"), HasSubstr("id 0 is")));
  EXPECT_EQ(good.opened().rows.front().full, alone[0]);
  EXPECT_EQ(engine_->status().passes, passes + 1) << "they did not share a pass";
  EXPECT_EQ(good.step(one_step(30, {7})).rows.front().full, alone[1]);
}

TEST_P(NotFinite, StepEndsItsSessionOnly) {
  const Rows alone = forced_rows(*engine_, ids(30), {7, 8, 9});
  while (engine_->status().sessions != 0) std::this_thread::yield();
  BusyPass busy(*engine_);
  BlockingSession bad(*engine_, open_prompt(ids(40, 3)));
  BlockingSession good(*engine_, open_prompt(ids(30)));
  busy.end();
  bad.opened();
  good.opened();
  const uint64_t passes = engine_->status().passes;
  bad.submit(one_step(40, {kPoisonedId}));
  good.submit(one_step(30, {7}));
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { bad.wait(); }), HasSubstr("position 40"));
  EXPECT_EQ(good.wait().rows.front().full, alone[1]);
  EXPECT_EQ(engine_->status().passes, passes + 1) << "they did not share a pass";
  EXPECT_EQ(good.step(one_step(31, {8})).rows.front().full, alone[2]);
  while (engine_->status().sessions != 1) std::this_thread::yield();
  EXPECT_EQ(engine_->status().kv_bytes, engine_->plan().kv_bytes_per_token * 512);
}

// Pages and activations that held what is no number are used again by others.
TEST_P(NotFinite, LeavesNothingBehind) {
  const Rows alone = forced_rows(*engine_, ids(30), {7, 8});
  for (int turn = 0; turn < 3; ++turn) {
    BlockingSession bad(*engine_, open_prompt(std::vector<int32_t>(200, kPoisonedId)));
    error_of(ErrorCode::internal, [&] { bad.opened(); });
    EXPECT_EQ(forced_rows(*engine_, ids(30), {7, 8}), alone);
  }
  // Within one session: positions past a truncation hold them still.
  OpenRequest unseen = open_prompt(std::vector<int32_t>(200, kPoisonedId));
  unseen.rows = WantedRows::none;
  BlockingSession session(*engine_, std::move(unseen));
  session.opened();
  EXPECT_EQ(session.step(one_step(0, ids(30))).rows.front().full, alone[0]);
  EXPECT_EQ(session.step(one_step(30, {7})).rows.front().full, alone[1]);
}

INSTANTIATE_TEST_SUITE_P(Kernels, NotFinite, ::testing::Values("plain", "auto"),
                         [](const auto& info) { return info.param; });

// An engine on a FaultyDevice.
struct FaultyEngine {
  explicit FaultyEngine(const EngineOptions& options, const EngineTuning& tuning = {},
                        bool refuses_pins = false) {
    PreparedModel prepared = prepare_model(options);
    auto faulty = std::make_unique<FaultyDevice>(std::move(prepared.device));
    device = faulty.get();
    if (refuses_pins) device->refuse_pins();
    prepared.device = std::move(faulty);
    engine = std::make_unique<EngineImpl>(std::move(prepared), LoadProgress{}, tuning);
  }
  FaultyDevice* device = nullptr;
  std::unique_ptr<Engine> engine;
};

// Two slots for four layers: every pass copies.
EngineOptions streamed() { return with_residency(exact_options("llama_gqa"), 0, 2); }

TEST(RefusedPin, IsToldAndChangesNoBit) {
  FaultyEngine pinned(streamed());
  FaultyEngine faulty(streamed(), {}, true);
  EXPECT_THAT(pinned.engine->plan().notes, Not(Contains(HasSubstr("pinned"))));
  EXPECT_THAT(faulty.engine->plan().notes,
              Contains(AllOf(HasSubstr("of weights could not be pinned (planted refusal)"),
                             HasSubstr("--home mmap"))));
  EXPECT_EQ(forced_rows(*faulty.engine, ids(30), {7}), forced_rows(*pinned.engine, ids(30), {7}));
}

class FailedCopy : public ::testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(FailedCopy, FailsTheSessionsOfThePassAndNoLaterOnes) {
  const auto& [stream, where] = GetParam();
  FaultyEngine faulty(streamed());
  Engine& engine = *faulty.engine;
  const Rows alone = forced_rows(engine, ids(30), {7});
  BlockingSession idle(engine, open_prompt(ids(30)));
  idle.opened();
  for (int turn = 0; turn < 3; ++turn) {
    BlockingSession session(engine, open_prompt(ids(30)));
    session.opened();
    // Its row goes home when the next pass computes others.
    BlockingSession waiting(engine, open_prompt(ids(30)));
    waiting.opened();
    faulty.device->fail_copies(stream, 1);
    EXPECT_THAT(error_of(ErrorCode::internal, [&] { session.step(one_step(30, {7})); }),
                AllOf(HasSubstr("pass"), HasSubstr(where), HasSubstr("planted fault of a copy")));
    EXPECT_EQ(engine.fatal_error(), std::nullopt);
    error_of(ErrorCode::unavailable, [&] { waiting.fetch_row(29); });
    EXPECT_EQ(forced_rows(engine, ids(30), {7}), alone);
    EXPECT_EQ(waiting.step(one_step(30, {7})).rows.front().full, alone[1]);
  }
  EXPECT_EQ(idle.fetch_row(29), alone[0]);
  EXPECT_EQ(idle.step(one_step(30, {7})).rows.front().full, alone[1]);
}

INSTANTIATE_TEST_SUITE_P(Streams, FailedCopy,
                         ::testing::Values(std::pair("ete copy in", "copying layers to the device"),
                                           std::pair("ete write back", "copying logits to the host")),
                         [](const auto& info) {
                           return info.param.first == "ete copy in" ? "copy_in" : "write_back";
                         });

// Copies ahead of the next pass that fail while no pass runs: the sessions that step meanwhile must not wait
// for ever on slots that never become full.
TEST(FailedCopyBetweenPasses, DoesNotStopTheEngine) {
  EngineOptions options = streamed();
  options.link_limit = uint64_t{4} << 20;
  FaultyEngine faulty(options);
  BlockingSession idle(*faulty.engine, open_prompt(ids(30)));
  BlockingSession session(*faulty.engine, open_prompt(ids(30)));
  idle.opened();
  session.opened();
  idle.submit(one_step(30, {7}));
  session.step(one_step(30, {7}));
  faulty.device->fail_copies("ete copy in", 1);
  // `idle` was in that pass and does not step: the engine waits for the slots, then runs without it.
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { session.step(one_step(31, {8})); }),
              HasSubstr("copying layers to the device"));
  EXPECT_EQ(idle.wait().length, 31);
}

EngineOptions caching(int sessions) {
  EngineOptions options = streamed();
  options.max_sessions = sessions;
  options.max_queued = 1;
  options.prefix_cache = int64_t{64} << 20;
  return options;
}

// A prompt that was restored with its logits takes no pass.
OpenRequest known_prompt(std::vector<int32_t> prompt = ids(30)) {
  OpenRequest open = open_prompt(std::move(prompt));
  open.cache_salt = "mine";
  return open;
}

// Returns the row after known_prompt().
std::vector<float> restore_prompt(Engine& engine) {
  BlockingSession session(engine, open_prompt(ids(30)));
  std::vector<float> row = session.opened().rows.front().full;
  EngineAnswer<SessionImage> image;
  engine.snapshot("", ids(30), image.callback());
  EngineAnswer<int64_t> restored;
  engine.restore("mine", image.wait(), restored.callback());
  EXPECT_EQ(restored.wait(), 30);
  return row;
}

TEST(FailedKnownRow, TheNextInTheQueueHasItsPromptLookedUp) {
  FaultyEngine faulty(caching(1));
  restore_prompt(*faulty.engine);
  faulty.device->fail_copies("ete compute", 1);
  std::optional<BlockingSession> failing, next;
  std::promise<void> opened;
  // On the engine's thread, so that both are there before either is looked at.
  faulty.engine->snapshot("", ids(1), [&](const SessionImage&, const Error*) {
    failing.emplace(*faulty.engine, known_prompt());
    next.emplace(*faulty.engine, known_prompt(ids(32)));
    opened.set_value();
  });
  opened.get_future().wait();
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { failing->opened(); }), HasSubstr("planted fault"));
  EXPECT_EQ(next->opened().reused_tokens, 30);
}

TEST(FailedKnownRow, RowsOfOthersThatAreLostAreSaidToBe) {
  FaultyEngine faulty(caching(2));
  const std::vector<float> row = restore_prompt(*faulty.engine);
  // Its row goes home when others take its place on the device.
  BlockingSession waiting(*faulty.engine, open_prompt(ids(30, 3)));
  waiting.opened();
  faulty.device->fail_copies("ete write back", 1);
  error_of(ErrorCode::internal, [&] { BlockingSession(*faulty.engine, known_prompt()).opened(); });
  error_of(ErrorCode::unavailable, [&] { waiting.fetch_row(29); });
  EXPECT_EQ(BlockingSession(*faulty.engine, known_prompt()).opened().rows.front().full, row);
}

TEST(BrokenDevice, EndsEverySessionAndSaysSo) {
  FaultyEngine faulty(streamed());
  Engine& engine = *faulty.engine;
  BlockingSession idle(engine, open_prompt(ids(30)));
  idle.opened();
  BlockingSession session(engine, open_prompt(ids(30)));
  session.opened();
  EXPECT_EQ(engine.fatal_error(), std::nullopt);
  faulty.device->fail_copies("", -1);
  const std::string message = error_of(ErrorCode::internal, [&] { session.step(one_step(30, {7})); });
  EXPECT_THAT(message, AllOf(HasSubstr("device"), HasSubstr("planted fault of the device")));
  ASSERT_TRUE(engine.fatal_error());
  EXPECT_EQ(engine.fatal_error()->what(), message);
  EXPECT_EQ(error_of(ErrorCode::internal, [&] { idle.wait(); }), message);
  EXPECT_EQ(error_of(ErrorCode::internal, [&] { BlockingSession(engine, open_prompt({5})).opened(); }),
            message);
  // A session is told first, status follows.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (engine.status().sessions != 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(engine.status().sessions, 0);
}

#if !defined(__SANITIZE_ADDRESS__)  // there the write itself ends the process
TEST(Overrun, FailsThePass) {
  FaultyEngine faulty(streamed(), {.arena = ArenaMode::separate});
  const Rows alone = forced_rows(*faulty.engine, ids(30), {7});
  BlockingSession session(*faulty.engine, open_prompt(ids(30)));
  session.opened();
  const auto& [data, bytes] = faulty.device->device_buffers().front();
  std::byte* zone_end = data + bytes - 1;
  const std::byte before = std::exchange(*zone_end, std::byte{1});
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { session.step(one_step(30, {7})); }),
              HasSubstr("device arena: part 0"));
  *zone_end = before;
  EXPECT_EQ(forced_rows(*faulty.engine, ids(30), {7}), alone);
}
#endif

}  // namespace
}  // namespace ete::test
