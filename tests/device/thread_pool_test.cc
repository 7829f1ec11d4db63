#include "engine/device/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>

#include "engine/base/error.h"
#include "engine/device/cpu/cpu_stream.h"

namespace ete {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};

TEST_P(ThreadPoolTest, RunsEachTaskOnce) {
  for (const int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    pool_.parallel_for(tasks, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, WorkersAreExclusive) {
  std::vector<std::atomic<int>> inside(static_cast<size_t>(pool_.size()));
  std::atomic<bool> clash{false};
  pool_.parallel_for(2000, [&](int64_t, int worker) {
    auto& mine = inside.at(static_cast<size_t>(worker));
    if (++mine != 1) clash = true;
    --mine;
  });
  EXPECT_FALSE(clash);
}

// The results of a loop are plain memory: they must be visible to the caller, and a helper that is late for
// one loop must not run a task of it during the next.
TEST_P(ThreadPoolTest, ManyShortLoopsSeeTheirOwnData) {
  std::vector<int64_t> values(5);
  for (int64_t loop = 0; loop < 3000; ++loop) {
    pool_.parallel_for(5, [&, loop](int64_t task, int) { values[static_cast<size_t>(task)] = loop * task; });
    ASSERT_EQ(std::accumulate(values.begin(), values.end(), int64_t{0}), loop * 10);
  }
}

TEST_P(ThreadPoolTest, WorksAfterParking) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> runs{0};
    pool_.parallel_for(100, [&](int64_t, int) { ++runs; });
    ASSERT_EQ(runs, 100);
  }
}

TEST_P(ThreadPoolTest, RethrowsTheFirstExceptionAndRecovers) {
  const auto failing = [](int64_t task, int) {
    if (task == 3) throw Error(ErrorCode::unavailable, "task 3");
  };
  try {
    pool_.parallel_for(100, failing);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
  }
  std::atomic<int> runs{0};
  pool_.parallel_for(100, [&](int64_t, int) { ++runs; });
  EXPECT_EQ(runs, 100);
}

TEST_P(ThreadPoolTest, RefusesToNest) {
  EXPECT_THROW(pool_.parallel_for(4, [&](int64_t, int) { pool_.parallel_for(4, [](int64_t, int) {}); }),
               Error);
}

TEST_P(ThreadPoolTest, CallsFromTwoThreadsSerialise) {
  std::atomic<int> loops_inside{0};
  std::atomic<int> wrong{0};
  const auto caller = [&](int tag) {
    for (int loop = 0; loop < 300; ++loop) {
      std::atomic<int> runs{0};
      pool_.parallel_for(8, [&](int64_t task, int) {
        if (task == 0 && ++loops_inside != 1) ++wrong;
        ++runs;
        if (task == 0) --loops_inside;
      });
      if (runs != 8) ++wrong;
    }
    return tag;
  };
  std::thread other([&] { caller(1); });
  caller(2);
  other.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 8));

TEST(ThreadPool, RefusesAnEmptyPool) { EXPECT_THROW(ThreadPool(0), Error); }

// In a process of its own, whose address space holds the stacks of a few threads more: exits with 0 when
// `make` is refused as it should be, and dies of the alarm when it hangs.
template <typename Make>
[[noreturn]] void exit_with_few_threads(const Make& make, const std::string& due) {
  alarm(20);
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + (size_t{100} << 20);
  const rlimit address_space{limit, limit};
  if (setrlimit(RLIMIT_AS, &address_space) != 0) _exit(2);
  try {
    make();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    _exit(error.code() == ErrorCode::resource_exhausted &&
                  std::string(error.what()).find(due) != std::string::npos
              ? 0
              : 3);
  }
  _exit(4);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ETE_LIMITED_ADDRESS_SPACE 0  // the sanitizers need more of it than there is memory
#else
#define ETE_LIMITED_ADDRESS_SPACE 1
#endif
#if ETE_LIMITED_ADDRESS_SPACE

TEST(ThreadPoolDeathTest, RefusesMoreThreadsThanTheSystemMakes) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(exit_with_few_threads([] { ThreadPool pool(512); }, "--threads 512"),
              testing::ExitedWithCode(0), "--threads 512: only [1-9][0-9]* could be started");
}

TEST(ThreadPoolDeathTest, RefusesAStreamWithoutAThread) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto many_streams = [] {
    std::vector<std::unique_ptr<CpuStream>> streams;
    for (int i = 0; i < 512; ++i) streams.push_back(std::make_unique<CpuStream>("copy"));
  };
  EXPECT_EXIT(exit_with_few_threads(many_streams, "stream 'copy'"), testing::ExitedWithCode(0),
              "stream 'copy'");
}

#endif

}  // namespace
}  // namespace ete
