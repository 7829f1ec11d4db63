#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ete {

// A tensor of the checkpoint to come; dtype as safetensors spells it: F32, F16, BF16, I8, I32, I64 or U8.
struct CheckpointTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t bytes() const;  // Error(unsupported) for another dtype
};

// Writes the safetensors files of a Hugging Face directory as their data comes: model.safetensors or, past
// max_shard_bytes, shards of whole tensors and their index. One thread at a time. Throws Error(unavailable)
// naming the file; the directory is the caller's, who removes it then.
class CheckpointWriter {
 public:
  CheckpointWriter(std::string directory, std::vector<CheckpointTensor> tensors, uint64_t max_shard_bytes);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // The data of the tensors, one after the other, in pieces of any size.
  void write(std::span<const std::byte> data);
  // All data must have been written. They are on the disk afterwards.
  void finish();
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  struct Shard {
    std::string name;
    size_t first = 0;  // of its tensors
    size_t end = 0;
    uint64_t bytes = 0;  // of their data
  };
  void divide(uint64_t max_shard_bytes);
  void open_shard();
  void close_shard();
  void write_index() const;

  std::string directory_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<Shard> shards_;
  size_t shard_ = 0;   // being written
  uint64_t left_ = 0;  // bytes of data that the shard still lacks
  uint64_t total_bytes_ = 0;
  int fd_ = -1;
};

// Writes a whole file and waits until it is on the disk. Error(unavailable) naming it.
void write_file(const std::string& path, std::string_view text);

}  // namespace ete
