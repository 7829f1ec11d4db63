#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/runtime/engine_harness.h"
#include "tests/runtime/prompts.h"

// What is asked of the engine while a pass runs. The link makes a pass last: a second or so.

namespace ete::test {
namespace {

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::internal;
}

class MidPassTest : public testing::Test {
 protected:
  static EngineOptions options() {
    EngineOptions options = with_residency(exact_options("llama_gqa"), 0, 2);
    options.link_limit = uint64_t{4} << 20;
    options.chunk = 64;
    return options;
  }
  // Until `reached`, or for 20 s.
  bool eventually(const std::function<bool()>& reached) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end) {
      if (reached()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }
  // Waits for a pass of one session: its page is there once the pass runs.
  bool in_pass() const {
    return eventually([this] { return engine_->status().kv_bytes >= page(); });
  }
  uint64_t page() const { return engine_->plan().kv_bytes_per_token * 512; }
  std::unique_ptr<Engine> engine_ = load_engine(options(), {}, {.poison_released_slots = true});
};

TEST_F(MidPassTest, DestructionDeliversNothing) {
  class Listener final : public SessionListener {
   public:
    void on_result(StepResult) override { ++results; }
    void on_error(const Error& error) override { code = error.code(); }
    int results = 0;
    std::optional<ErrorCode> code;
  };
  const auto listener = std::make_shared<Listener>();
  engine_->open(open_prompt(ids(40)), listener);
  ASSERT_TRUE(in_pass());
  engine_.reset();
  EXPECT_EQ(listener->results, 0);
  EXPECT_EQ(listener->code, ErrorCode::cancelled);
}

TEST_F(MidPassTest, SecondStepEndsTheSession) {
  BlockingSession session(*engine_, open_prompt(ids(40)));
  ASSERT_TRUE(in_pass());
  session.submit(one_step(0, {5}));
  EXPECT_EQ(code_of([&] { session.opened(); }), ErrorCode::failed_precondition);
}

TEST_F(MidPassTest, IdleSessionIsClosedAtABoundary) {
  BlockingSession idle(*engine_, open_prompt(ids(40)));
  idle.opened();
  BlockingSession busy(*engine_, open_prompt(ids(40, 1)));
  // Its page is there once its pass runs.
  ASSERT_TRUE(eventually([&] { return engine_->status().kv_bytes == 2 * page(); }));
  const uint64_t passes = engine_->status().passes;
  idle.close();
  ASSERT_TRUE(eventually([&] { return engine_->status().sessions == 1; }));
  EXPECT_EQ(engine_->status().passes, passes) << "it was closed after the pass, not in it";
  EXPECT_EQ(engine_->status().kv_bytes, page());
  EXPECT_EQ(busy.opened().length, 40);
}

TEST_F(MidPassTest, SessionThatIsOpenedAndClosedMeanwhileLeavesNothing) {
  BlockingSession busy(*engine_, open_prompt(ids(40)));
  ASSERT_TRUE(in_pass());
  BlockingSession other(*engine_, open_prompt(ids(40, 1)));
  engine_->close(other.id(), false);
  EXPECT_EQ(code_of([&] { other.opened(); }), ErrorCode::cancelled);
  EXPECT_EQ(engine_->status().passes, 0u);
  EXPECT_EQ(busy.opened().length, 40);
}

// The parent is cancelled while its fork has yet to be made: what it has computed stays with the fork.
TEST_F(MidPassTest, ForkOutlivesItsBusyParent) {
  const Rows alone = forced_rows(*engine_, ids(64), {7, 8});
  ASSERT_TRUE(eventually([&] { return engine_->status().sessions == 0; }));
  const uint64_t passes = engine_->status().passes;
  BlockingSession parent(*engine_, open_prompt(ids(300)));
  ASSERT_TRUE(eventually([&] { return engine_->status().passes > passes; }));
  OpenRequest open;
  open.fork_of = parent.id();
  open.fork_position = 64;
  BlockingSession fork(*engine_, std::move(open));
  parent.close();
  EXPECT_EQ(fork.step(one_step(64, {7})).rows.front().full, alone[1]);
  EXPECT_EQ(fork.step(one_step(65, {8})).rows.front().full, alone[2]);
}

TEST_F(MidPassTest, StatusFollowsGrowth) {
  BlockingSession session(*engine_, open_prompt(ids(40)));
  ASSERT_TRUE(in_pass());
  const EngineStatus status = engine_->status();
  EXPECT_EQ(status.passes, 0u);
  EXPECT_EQ(status.kv_bytes, page());
  session.opened();
}

TEST_F(MidPassTest, RowsAreNotFetchedBeforeTheirStepIsDone) {
  BlockingSession session(*engine_, open_prompt(ids(40)));
  ASSERT_TRUE(in_pass());
  EXPECT_EQ(code_of([&] { session.fetch_row(39); }), ErrorCode::failed_precondition);
  EXPECT_EQ(session.opened().length, 40);
}

}  // namespace
}  // namespace ete::test
