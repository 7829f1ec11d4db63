#include "clients/cli/safetensors_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "clients/cli/private_directory.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

namespace fs = std::filesystem;

size_t files_in(const std::string& directory) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

void write_sample(SafetensorsWriter& writer) {
  writer.write(std::vector<float>{1, 2});
  writer.write(std::vector<float>{3, 4});
  writer.write(std::vector<int32_t>{7});
}

const std::vector<OutputTensor> kTensors = {{"logits", "F32", {2, 2}}, {"greedy_ids", "I32", {1}}};

TEST(SafetensorsWriter, WritesTheFormat) {
  PrivateDirectory directory;
  const std::string path = directory.file("out.safetensors");
  SafetensorsWriter writer(path, kTensors);
  write_sample(writer);
  EXPECT_FALSE(fs::exists(path));
  writer.commit();
  EXPECT_EQ(files_in(directory.path()), 1u);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  uint64_t length = 0;
  ASSERT_GE(bytes.size(), sizeof(length));
  memcpy(&length, bytes.data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
  ASSERT_EQ(bytes.size(), 8 + length + 20);
  const std::string header = bytes.substr(8, length);
  EXPECT_EQ(header.substr(0, header.find_last_not_of(' ') + 1),
            R"({"logits":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
            R"("greedy_ids":{"dtype":"I32","shape":[1],"data_offsets":[16,20]}})");
  const float expected[] = {1, 2, 3, 4};
  EXPECT_EQ(memcmp(bytes.data() + 8 + length, expected, sizeof(expected)), 0);
}

TEST(SafetensorsWriter, LeavesTheOldFileAndNoOtherWhenItFails) {
  PrivateDirectory directory;
  const std::string path = directory.file("out.safetensors");
  std::ofstream(path) << "old";
  {
    SafetensorsWriter writer(path, kTensors);
    writer.write(std::vector<float>{1, 2});
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_EQ(files_in(directory.path()), 1u);
  EXPECT_EQ(fs::file_size(path), 3u);
}

TEST(SafetensorsWriter, LeavesNothingWhenItsProcessIsKilled) {
  PrivateDirectory directory;
  const pid_t child = fork();
  if (child == 0) {
    SafetensorsWriter writer(directory.file("out.safetensors"), kTensors);
    writer.write(std::vector<float>{1, 2});
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(files_in(directory.path()), 0u);
}

TEST(SafetensorsWriter, RefusesMoreDataThanDeclared) {
  PrivateDirectory directory;
  SafetensorsWriter writer(directory.file("out"), kTensors);
  write_sample(writer);
  EXPECT_THROW(writer.write(std::vector<float>{1}), Error);
}

TEST(SafetensorsWriter, NamesThePathThatCannotBeWritten) {
  for (const std::string path : {"/nonexistent/out.safetensors", "/dev/null"}) {
    try {
      SafetensorsWriter writer(path, kTensors);
      FAIL() << path;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace ete::cli
