#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ete::cli {

// A tensor of the file to come; elements have 4 bytes.
struct OutputTensor {
  std::string name;
  std::string dtype;  // "F32" or "I32", as the format spells it
  std::vector<int64_t> shape;
};

// Writes a safetensors file as its data comes, in the order of the tensors, and makes it appear whole: until
// commit() the data lie in a file without a name, which goes with the process, or, where the file system
// knows no such files, in one of another name in the same directory, which goes with the writer. Throws Error
// naming the path.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::string& path, const std::vector<OutputTensor>& tensors);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::span<const float> values) { write_bytes(values.data(), values.size_bytes()); }
  void write(std::span<const int32_t> values) { write_bytes(values.data(), values.size_bytes()); }
  // All data must have been written.
  void commit();

 private:
  void open_partial();
  std::string partial_name() const;
  void write_bytes(const void* data, size_t bytes);
  [[noreturn]] void fail(const std::string& what);

  std::string path_;
  std::string partial_;   // what to remove unless committed; empty: nothing
  bool unnamed_ = false;  // fd_ has no name yet
  int fd_ = -1;
  uint64_t missing_ = 0;  // bytes of data still to be written
};

}  // namespace ete::cli
