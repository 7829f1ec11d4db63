#include "clients/options/failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace ete {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST(Failure, TellsWhatWasDoneAndHowMuchMemoryThereIs) {
  EXPECT_THAT(failure_text(std::bad_alloc(), "loading a.gguf"),
              AllOf(HasSubstr("out of memory while loading a.gguf: the process has "), HasSubstr(" MiB")));
  EXPECT_THAT(failure_text(std::bad_alloc(), ""), HasSubstr("out of memory: the process has "));
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  EXPECT_THAT(failure_text(no_thread, "loading a.gguf"),
              HasSubstr("no thread can be started while loading a.gguf: the process has "));
}

TEST(Failure, OtherExceptionsTellThemselves) {
  EXPECT_EQ(failure_text(std::runtime_error("a.gguf: damaged"), "loading a.gguf"), "a.gguf: damaged");
  const std::system_error gone(std::make_error_code(std::errc::no_such_device));
  EXPECT_EQ(failure_text(gone, "loading a.gguf"), gone.what());
}

TEST(Failure, TellsOfTheLimit) {
  EXPECT_THAT(std::string(memory_text().data()),
              MatchesRegex("the process has [1-9][0-9]* MiB of address space, and [1-9][0-9]* MiB of RAM are "
                           "left|.*ulimit -v.*"));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 47;  // no less than a process can have
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  const std::string text = memory_text().data();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_THAT(text, MatchesRegex("the process has [1-9][0-9]* MiB of the 134217728 MiB of address space that "
                                 "its limit permits .ulimit -v."));
}

// What a thread throws that nobody watches.
template <typename Exception>
void throw_uncaught(const Exception& exception) {
  tell_uncaught_exceptions();
  std::thread([&] { throw exception; }).join();
}

TEST(FailureDeathTest, UncaughtExceptionsAreOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto failed = ::testing::ExitedWithCode(1);
  EXPECT_EXIT(throw_uncaught(std::bad_alloc()), failed,
              "^failure_test: out of memory: the process has [0-9]+ MiB.*\n$");
  EXPECT_EXIT(
      throw_uncaught(std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))),
      failed, "^failure_test: no thread can be started: the process has [0-9]+ MiB.*\n$");
  EXPECT_EXIT(throw_uncaught(std::runtime_error("a fault")), ::testing::KilledBySignal(SIGABRT),
              "^failure_test: internal error: a fault\n$");
}

}  // namespace
}  // namespace ete
