#include "clients/cli/safetensors_writer.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr uint64_t kElementBytes = 4;
constexpr size_t kAlignment = 8;  // of the first tensor's data

uint64_t bytes_of(const OutputTensor& tensor) {
  uint64_t bytes = kElementBytes;
  for (const int64_t extent : tensor.shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

std::string header_of(const std::vector<OutputTensor>& tensors) {
  nlohmann::ordered_json header;
  uint64_t offset = 0;
  for (const OutputTensor& tensor : tensors) {
    const uint64_t end = offset + bytes_of(tensor);
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<OutputTensor>& tensors)
    : path_(path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::invalid_argument, path + " is there and is not a regular file");
  }
  open_partial();
  const std::string header = header_of(tensors);
  const uint64_t length = header.size();
  missing_ = sizeof(length) + length;
  for (const OutputTensor& tensor : tensors) missing_ += bytes_of(tensor);
  try {
    write_bytes(&length, sizeof(length));
    write_bytes(header.data(), header.size());
  } catch (const Error&) {
    close(fd_);
    if (!partial_.empty()) unlink(partial_.c_str());
    throw;
  }
}

void SafetensorsWriter::open_partial() {
  const std::string directory = std::filesystem::path(path_).parent_path().string();
  fd_ = open(directory.empty() ? "." : directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  unnamed_ = fd_ >= 0;
  if (unnamed_) return;
  const std::string partial = partial_name();
  fd_ = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail("write");
  partial_ = partial;
}

std::string SafetensorsWriter::partial_name() const {
  std::string name = path_ + "." + std::to_string(getpid()) + ".partial";
  // One of this name was left by a dead process that had our id.
  unlink(name.c_str());
  return name;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) close(fd_);
  if (!partial_.empty()) unlink(partial_.c_str());
}

void SafetensorsWriter::fail(const std::string& what) {
  throw Error(ErrorCode::unavailable, "cannot " + what + " " + path_ + ": " + strerror(errno));
}

void SafetensorsWriter::write_bytes(const void* data, size_t bytes) {
  CHECK(bytes <= missing_, "more data than the header declares");
  missing_ -= bytes;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write");
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void SafetensorsWriter::commit() {
  CHECK(missing_ == 0, "less data than the header declares");
  if (unnamed_) {
    const std::string partial = partial_name();
    const std::string unnamed = "/proc/self/fd/" + std::to_string(fd_);
    if (linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, partial.c_str(), AT_SYMLINK_FOLLOW) != 0) fail("write");
    partial_ = partial;
  }
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0) fail("write");
  if (rename(partial_.c_str(), path_.c_str()) != 0) fail("write");
  partial_.clear();
}

}  // namespace ete::cli
