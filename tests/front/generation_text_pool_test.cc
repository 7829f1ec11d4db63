#include "services/front/text_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr size_t kLong = TextPool::kShortBytes + 1;

// Jobs that run until they are let go, and what became of each.
struct Gate {
  TextPool::Job job(size_t bytes, bool wanted = true) {
    return {bytes, [wanted] { return wanted; },
            [this](bool still_wanted) {
              ++(still_wanted ? begun : given_up);
              if (still_wanted) opened.wait();
            }};
  }
  void open() { promise.set_value(); }

  std::promise<void> promise;
  std::shared_future<void> opened = promise.get_future().share();
  std::atomic<int> begun{0}, given_up{0};
};

void wait_for(const std::atomic<int>& count, int value) {
  while (count < value) std::this_thread::yield();
}

TEST(TextPool, ShortTextsPassLongOnes) {
  Gate gate;
  TextPool pool;
  for (int i = 0; i < 3; ++i) pool.post(gate.job(kLong));
  wait_for(gate.begun, 1);
  std::promise<bool> ran;
  pool.post({TextPool::kShortBytes, [] { return true; }, [&](bool wanted) { ran.set_value(wanted); }});
  EXPECT_TRUE(ran.get_future().get());
  EXPECT_EQ(gate.begun, 1);
  gate.open();
  wait_for(gate.begun, 3);
}

TEST(TextPool, RefusesWhatDoesNotFitItsQueue) {
  Gate gate;
  TextPool pool(TextPool::Limits{.jobs = 2, .bytes = 5 * kLong});
  pool.post(gate.job(kLong));
  wait_for(gate.begun, 1);
  pool.post(gate.job(3 * kLong));
  EXPECT_THROW(pool.post(gate.job(3 * kLong)), FrontError);
  pool.post(gate.job(kLong));
  try {
    pool.post(gate.job(kLong));
    ADD_FAILURE() << "a third one waits";
  } catch (const FrontError& error) {
    EXPECT_EQ(error.code(), FrontErrorCode::resource_exhausted);
  }
  pool.post(gate.job(1));  // short texts have a queue of their own
  gate.open();
  wait_for(gate.begun, 4);
}

TEST(TextPool, JobsThatNobodyWantsMakeRoom) {
  Gate gate;
  TextPool pool(TextPool::Limits{.jobs = 2, .bytes = 100 * kLong});
  pool.post(gate.job(kLong));
  wait_for(gate.begun, 1);
  pool.post(gate.job(kLong, false));
  pool.post(gate.job(kLong, false));
  pool.post(gate.job(kLong));
  EXPECT_EQ(gate.given_up, 2);
  gate.open();
  wait_for(gate.begun, 2);
}

TEST(TextPool, GivesUpWhatWaitsAtItsEnd) {
  Gate gate;
  {
    TextPool pool;
    pool.post(gate.job(kLong));
    wait_for(gate.begun, 1);
    for (int i = 0; i < 5; ++i) pool.post(gate.job(kLong, false));
    gate.open();
  }
  EXPECT_EQ(gate.begun + gate.given_up, 6);
}

}  // namespace
}  // namespace ete::front
