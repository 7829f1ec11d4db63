#pragma once

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/weights/checkpoint_writer.h"
#include "tests/runtime/engine_harness.h"
#include "tests/weights/temp_dir.h"

namespace ete::test {

// A directory of one safetensors file, copied from another, that a test changes before it is written.
class CheckpointCopy {
 public:
  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };

  // A golden's name or a path.
  explicit CheckpointCopy(const std::string& model) {
    const std::string source = model.find('/') == std::string::npos ? model_path(model) : model;
    config = nlohmann::json::parse(testing::read_all(source + "/config.json"));
    const std::string file = testing::read_all(source + "/model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    const auto header = nlohmann::json::parse(file.substr(sizeof length, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto begin = entry["data_offsets"][0].get<uint64_t>();
      const auto end = entry["data_offsets"][1].get<uint64_t>();
      tensors[name] = {entry["dtype"], entry["shape"],
                       file.substr(sizeof length + length + begin, end - begin)};
    }
  }

  void rename(const std::string& prefix, const std::string& to) {
    std::map<std::string, Tensor> renamed;
    for (auto& [name, tensor] : tensors) {
      renamed[name.starts_with(prefix) ? to + name.substr(prefix.size()) : name] = std::move(tensor);
    }
    tensors = std::move(renamed);
  }
  // A tensor of zeros in F32.
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    const CheckpointTensor described{name, "F32", shape};
    tensors[name] = {"F32", shape, std::string(described.bytes(), '\0')};
  }

  void write() {
    std::filesystem::remove(dir_.file("model.safetensors"));
    dir_.write("config.json", config.dump());
    std::vector<CheckpointTensor> described;
    for (const auto& [name, tensor] : tensors) described.push_back({name, tensor.dtype, tensor.shape});
    CheckpointWriter writer(dir_.path(), std::move(described), UINT64_MAX);
    for (const auto& [name, tensor] : tensors) writer.write(std::as_bytes(std::span(tensor.bytes)));
    writer.finish();
  }
  std::string directory() const { return dir_.path(); }

  nlohmann::json config;
  std::map<std::string, Tensor> tensors;

 private:
  testing::TempDir dir_;
};

}  // namespace ete::test
