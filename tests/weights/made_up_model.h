#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/device/cpu/thread_pool.h"
#include "engine/weights/weight_store.h"

// A made-up model: layers of one matrix, one vector and one weight that is absent.

namespace ete {

constexpr int64_t kLayers = 5;
constexpr int64_t kRows = 50;
constexpr int64_t kCols = 40;

class MadeUpTensors final : public TensorSource {
 public:
  void add(const std::string& name, std::vector<int64_t> shape, float first) {
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    std::vector<float>& values = values_[name];
    for (size_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i % 97) / 64);
    tensors_[name] = {.name = name,
                      .type = SourceType::f32,
                      .shape = std::move(shape),
                      .data = reinterpret_cast<const std::byte*>(values.data()),
                      .data_bytes = count * sizeof(float),
                      .file = "made up"};
  }
  float value(const std::string& name, int64_t index) const {
    return values_.at(name)[static_cast<size_t>(index)];
  }
  int releases() const { return releases_; }

  const SourceTensor* find(std::string_view name) const override {
    const auto found = tensors_.find(std::string(name));
    return found == tensors_.end() ? nullptr : &found->second;
  }
  std::vector<const SourceTensor*> all() const override { return {}; }
  void release(const SourceTensor&) const override { ++releases_; }

 private:
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, SourceTensor> tensors_;
  mutable int releases_ = 0;
};

class MadeUpModel : public testing::Test {
 protected:
  MadeUpModel() {
    for (int64_t i = 0; i < kLayers; ++i) {
      const std::string name = std::string("layer").append(std::to_string(i));
      source_.add(name + ".w", {kRows, kCols}, static_cast<float>(i));
      source_.add(name + ".b", {kRows}, static_cast<float>(10 * i));
      weights_.layers.push_back({matrix(name + ".w"), vector(name + ".b"), WeightSpec{}});
    }
    source_.add("embed", {kRows, kCols}, 100);
    source_.add("norm", {kCols}, 200);
    weights_.embedding = {matrix("embed")};
    weights_.final_norm = {{.name = "norm", .source = "norm", .rows = kCols}};
  }

  static WeightSpec matrix(const std::string& name, WeightFormat format = WeightFormat::f32) {
    return {.name = name,
            .source = name,
            .shape = WeightShape::matrix,
            .rows = kRows,
            .cols = kCols,
            .format = format};
  }
  static WeightSpec vector(const std::string& name) { return {.name = name, .source = name, .rows = kRows}; }

  std::unique_ptr<WeightStore> make_store(double host_share = 0, WeightHome home = WeightHome::memory) {
    return std::make_unique<WeightStore>(*device_, source_, weights_,
                                         lay_out(weights_, std::vector<double>(kLayers, host_share)), pool_,
                                         WeightStore::Progress{}, home);
  }

  std::unique_ptr<Device> device_ = make_device({.device = "cpu", .threads = 1});
  std::unique_ptr<Stream> compute_ = device_->create_stream("compute");
  std::unique_ptr<Stream> copy_ = device_->create_stream("copy");
  ThreadPool pool_{2};
  MadeUpTensors source_;
  ModelWeights weights_;
};

}  // namespace ete
