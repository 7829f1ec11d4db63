#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Writes GGUF files for tests, well-formed unless a test spoils the fields on purpose.

namespace ete::testing {

class GgufBuilder {
 public:
  // Value types and tensor types by their numbers in the format, so that tests can write unknown ones.
  static constexpr uint32_t kU8 = 0, kI8 = 1, kU16 = 2, kI16 = 3, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7,
                            kString = 8, kArray = 9, kU64 = 10, kI64 = 11, kF64 = 12;
  static constexpr uint32_t kTensorF32 = 0, kTensorF16 = 1, kTensorQ8_0 = 8, kTensorBf16 = 30;

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;

  template <typename T>
  void scalar(std::string_view key, uint32_t type, T value) {
    begin_pair(key, type);
    put(pairs_, value);
  }
  void u32(std::string_view key, uint32_t value) { scalar(key, kU32, value); }
  void f32(std::string_view key, float value) { scalar(key, kF32, value); }
  void boolean(std::string_view key, bool value) { scalar(key, kBool, static_cast<uint8_t>(value)); }
  void string(std::string_view key, std::string_view value) {
    begin_pair(key, kString);
    put_string(pairs_, value);
  }
  template <typename T>
  void array(std::string_view key, uint32_t element, const std::vector<T>& values) {
    array_of_count(key, element, values.size(), values);
  }
  template <typename T>
  void array_of_count(std::string_view key, uint32_t element, uint64_t count, const std::vector<T>& values) {
    begin_pair(key, kArray);
    put(pairs_, element);
    put(pairs_, count);
    for (const T& value : values) put(pairs_, value);
  }
  void strings(std::string_view key, const std::vector<std::string>& values) {
    begin_pair(key, kArray);
    put(pairs_, kString);
    put(pairs_, static_cast<uint64_t>(values.size()));
    for (const std::string& value : values) put_string(pairs_, value);
  }

  // `shape` outermost first, as SourceTensor has it.
  void tensor(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type,
              std::string_view data) {
    data_.resize((data_.size() + alignment - 1) / alignment * alignment);
    tensor_at(name, shape, type, data_.size());
    data_.append(data);
  }
  void tensor_at(std::string_view name, const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset) {
    put_string(infos_, name);
    put(infos_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i-- > 0;) put(infos_, shape[i]);
    put(infos_, type);
    put(infos_, offset);
    ++tensor_count;
  }

  std::string bytes() const {
    std::string file = magic;
    put(file, version);
    put(file, tensor_count);
    put(file, pair_count);
    file += pairs_ + infos_;
    file.resize((file.size() + alignment - 1) / alignment * alignment);
    return file + data_;
  }
  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    file << bytes();
    if (!file.flush()) throw std::runtime_error("cannot write " + path);
  }

  uint64_t tensor_count = 0;
  uint64_t pair_count = 0;

 private:
  template <typename T>
  static void put(std::string& out, T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    out.append(raw, sizeof value);
  }
  static void put_string(std::string& out, std::string_view text) {
    put(out, static_cast<uint64_t>(text.size()));
    out.append(text);
  }
  void begin_pair(std::string_view key, uint32_t type) {
    put_string(pairs_, key);
    put(pairs_, type);
    ++pair_count;
  }

  std::string pairs_;
  std::string infos_;
  std::string data_;
};

template <typename T>
std::string raw_bytes(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace ete::testing
