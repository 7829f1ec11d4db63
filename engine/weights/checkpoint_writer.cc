#include "engine/weights/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace ete {
namespace {

constexpr size_t kHeaderAlignment = 8;  // as the format's own writer pads

[[noreturn]] void fail(const std::string& path) {
  throw Error(ErrorCode::unavailable, "cannot write " + path + ": " + strerror(errno));
}

void write_all(int fd, const void* data, size_t bytes, const std::string& path) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

int create(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) fail(path);
  return fd;
}

void sync_and_close(int fd, const std::string& path) {
  const bool is_synced = fsync(fd) == 0;
  const int error = errno;
  if (close(fd) == 0 && is_synced) return;
  if (!is_synced) errno = error;
  fail(path);
}

uint64_t element_bytes(const CheckpointTensor& tensor) {
  static const std::map<std::string_view, uint64_t> kBytes = {
      {"F64", 8},  {"I64", 8}, {"F32", 4},  {"I32", 4}, {"F16", 2},
      {"BF16", 2}, {"I16", 2}, {"BOOL", 1}, {"I8", 1},  {"U8", 1}};
  const auto found = kBytes.find(tensor.dtype);
  if (found != kBytes.end()) return found->second;
  throw Error(ErrorCode::unsupported, "tensor " + tensor.name + ": no safetensors dtype for " + tensor.dtype);
}

}  // namespace

uint64_t CheckpointTensor::bytes() const {
  uint64_t bytes = element_bytes(*this);
  for (const int64_t extent : shape) bytes *= static_cast<uint64_t>(extent);
  return bytes;
}

CheckpointWriter::CheckpointWriter(std::string directory, std::vector<CheckpointTensor> tensors,
                                   uint64_t max_shard_bytes)
    : directory_(std::move(directory)), tensors_(std::move(tensors)) {
  divide(max_shard_bytes);
  open_shard();
}

CheckpointWriter::~CheckpointWriter() {
  if (fd_ >= 0) close(fd_);
}

void CheckpointWriter::divide(uint64_t max_shard_bytes) {
  shards_.emplace_back();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const uint64_t bytes = tensors_[i].bytes();
    if (shards_.back().bytes > 0 && shards_.back().bytes + bytes > max_shard_bytes) {
      shards_.push_back({.name = "", .first = i, .end = i, .bytes = 0});
    }
    shards_.back().end = i + 1;
    shards_.back().bytes += bytes;
    total_bytes_ += bytes;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards_.size());
    shards_[i].name = shards_.size() == 1 ? "model.safetensors" : name;
  }
}

void CheckpointWriter::open_shard() {
  const Shard& shard = shards_[shard_];
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  uint64_t offset = 0;
  for (size_t i = shard.first; i < shard.end; ++i) {
    const uint64_t end = offset + tensors_[i].bytes();
    header[tensors_[i].name] = {
        {"dtype", tensors_[i].dtype}, {"shape", tensors_[i].shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  const uint64_t length = text.size();
  const std::string path = directory_ + "/" + shard.name;
  fd_ = create(path);
  left_ = shard.bytes;
  write_all(fd_, &length, sizeof length, path);
  write_all(fd_, text.data(), text.size(), path);
}

void CheckpointWriter::close_shard() {
  sync_and_close(std::exchange(fd_, -1), directory_ + "/" + shards_[shard_].name);
}

void CheckpointWriter::write(std::span<const std::byte> data) {
  while (!data.empty()) {
    if (left_ == 0) {
      CHECK(shard_ + 1 < shards_.size(), "more data than the tensors have");
      close_shard();
      ++shard_;
      open_shard();
    }
    const auto now = data.first(std::min<uint64_t>(left_, data.size()));
    write_all(fd_, now.data(), now.size(), directory_ + "/" + shards_[shard_].name);
    left_ -= now.size();
    data = data.subspan(now.size());
  }
}

void CheckpointWriter::finish() {
  CHECK(left_ == 0 && shard_ + 1 == shards_.size(), "less data than the tensors have");
  close_shard();
  if (shards_.size() > 1) write_index();
}

void CheckpointWriter::write_index() const {
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  for (const Shard& shard : shards_) {
    for (size_t i = shard.first; i < shard.end; ++i) weight_map[tensors_[i].name] = shard.name;
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes_}}},
                                        {"weight_map", weight_map}};
  write_file(directory_ + "/model.safetensors.index.json", index.dump(2) + "\n");
}

void write_file(const std::string& path, std::string_view text) {
  const int fd = create(path);
  try {
    write_all(fd, text.data(), text.size(), path);
  } catch (const Error&) {
    close(fd);
    throw;
  }
  sync_and_close(fd, path);
}

}  // namespace ete
