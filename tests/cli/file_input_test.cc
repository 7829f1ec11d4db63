#include "clients/cli/file_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <optional>
#include <thread>

#include "engine/base/error.h"
#include "tests/weights/temp_dir.h"

namespace ete::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMost = 1 << 20;

std::optional<Error> failure_of(const InputFile& file) {
  try {
    read_file(file);
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  }
}

class FileInput : public ::testing::Test {
 protected:
  std::string path() const { return directory_.file("input"); }
  void write(size_t bytes) const { std::ofstream(path()) << std::string(bytes, 'x'); }
  void refuses(const InputFile& file, ErrorCode code, const auto& message) const {
    const std::optional<Error> failure = failure_of(file);
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->code(), code);
    EXPECT_THAT(failure->what(), AllOf(HasSubstr(file.flag + " " + file.path + ": "), message));
  }

  testing::TempDir directory_;
};

TEST_F(FileInput, ReadsUpToTheLimit) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100'000}, size_t{kMost}}) {
    write(bytes);
    EXPECT_EQ(read_file({.flag = "--grammar", .path = path(), .most_bytes = kMost}), std::string(bytes, 'x'));
  }
}

TEST_F(FileInput, ReadsInParts) {
  write(10);
  FileReader reader({.flag = "--session", .path = path()});
  std::array<char, 4> part{};
  EXPECT_EQ(reader.read(part), 4u);
  EXPECT_EQ(reader.read(part), 4u);
  EXPECT_EQ(reader.read(part), 2u);
  EXPECT_EQ(reader.read(part), 0u);
}

TEST_F(FileInput, RefusesMoreThanTheLimit) {
  write(kMost + 1);
  const auto tells_sizes = AllOf(HasSubstr("1048577 bytes"), HasSubstr("at most 1048576 bytes (1 MiB)"));
  refuses({.flag = "--grammar", .path = path(), .most_bytes = kMost}, ErrorCode::invalid_argument,
          tells_sizes);
}

TEST_F(FileInput, RefusesAFileThatGrowsBeyondTheLimit) {
  write(kMost);
  FileReader reader({.flag = "/load", .path = path(), .most_bytes = kMost});
  write(kMost + 1);
  std::string text(kMost + 1, '\0');
  EXPECT_THROW(reader.read(text), Error);
}

TEST_F(FileInput, RefusesWhatIsNotThere) {
  refuses({.flag = "/load", .path = path()}, ErrorCode::not_found,
          HasSubstr("cannot be read: No such file or directory"));
}

TEST_F(FileInput, RefusesOtherKindsOfFilesWithoutWaiting) {
  const auto no_limit = AllOf(HasSubstr("accepted: a regular file"), Not(HasSubstr("MiB")));
  refuses({.flag = "--session", .path = directory_.path()}, ErrorCode::invalid_argument, no_limit);
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  refuses({.flag = "/load", .path = path()}, ErrorCode::invalid_argument, no_limit);
  refuses({.flag = "--grammar", .path = "/dev/zero", .may_be_pipe = true}, ErrorCode::invalid_argument,
          HasSubstr("accepted: a regular file or a pipe"));
}

TEST_F(FileInput, PipesAreReadWhereTheyAreAccepted) {
  signal(SIGPIPE, SIG_IGN);  // of the writer, whom nobody reads any more
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  for (const size_t bytes : {size_t{100'000}, size_t{2 * kMost}}) {
    std::thread writer([this, bytes] { write(bytes); });
    const InputFile file{.flag = "--grammar", .path = path(), .most_bytes = kMost, .may_be_pipe = true};
    if (bytes <= kMost) {
      EXPECT_EQ(read_file(file).size(), bytes);
    } else {
      refuses(file, ErrorCode::invalid_argument, HasSubstr("at most 1048576 bytes"));
    }
    writer.join();
  }
}

}  // namespace
}  // namespace ete::cli
