#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/device/device.h"
#include "engine/ops/cpu/matmul.h"
#include "engine/ops/ops.h"
#include "tests/device/device_status.h"
#include "tests/ops/random_floats.h"

namespace ete {

// Where one test body runs, and how far its f32 results may lie from the float64 reference: |error| at most
// tolerance x (1 + |reference|). A decode or prefill sum of a few thousand terms of size 1 stays well inside.
struct OpsParam {
  std::string device;
  KernelFamily family;
  double tolerance;
  Math math = Math::exact;
  int launch = 0;
};

inline const OpsParam kOpsParams[] = {
    {"cpu", KernelFamily::plain, 4e-6},
    {"cpu", KernelFamily::avx2, 4e-6},
    {"cpu", KernelFamily::avx512, 4e-6},
    {"cuda:0", KernelFamily::plain, 8e-6},
};

inline std::string name_of_param(const testing::TestParamInfo<OpsParam>& info) {
  return kind_of(info.param.device) + "_" + std::string(name_of(info.param.family));
}

// A device, its ops, one stream, and arrays that travel there and back.
class Runner {
 public:
  Runner(const OpsParam& param, int threads)
      : device_(make_device({.device = param.device, .threads = threads})),
        stream_(device_->create_stream("test")),
        ops_(make_ops(*device_, {.math = param.math, .family = param.family, .host_threads = threads})) {
    ops_->take_launch(param.launch);
  }

  Ops& ops() { return *ops_; }
  Stream& stream() { return *stream_; }
  void finish() { stream_->synchronize(); }

  Buffer bytes(size_t count, int fill) {
    Buffer buffer = device_->allocate(count, MemorySpace::device);
    const std::vector<std::byte> filled(count, static_cast<std::byte>(fill));
    device_->copy_async(*stream_, buffer.data(), filled.data(), count);
    finish();
    return buffer;
  }
  template <typename T>
  Buffer upload(const T* values, size_t count, MemorySpace space = MemorySpace::device) {
    Buffer buffer = device_->allocate(count * sizeof(T), space);
    device_->copy_async(*stream_, buffer.data(), values, count * sizeof(T));
    finish();
    return buffer;
  }
  template <typename T>
  Buffer upload(const std::vector<T>& values, MemorySpace space = MemorySpace::device) {
    return upload(values.data(), values.size(), space);
  }
  template <typename T = float>
  std::vector<T> download(const Buffer& buffer) {
    std::vector<T> values(buffer.size() / sizeof(T));
    device_->copy_async(*stream_, values.data(), buffer.data(), values.size() * sizeof(T));
    finish();
    return values;
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
};

class OpsTest : public testing::TestWithParam<OpsParam> {
 protected:
  void SetUp() override {
    const std::string missing = what_is_missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
  Runner runner(int threads = 2) const { return Runner(GetParam(), threads); }
  // For the one reason that is none of ours; every other error fails the test.
  static std::string what_is_missing() {
    const OpsParam& param = GetParam();
    if (param.device != "cpu") return why_absent(param.device);
    const std::vector<KernelFamily> here = supported_families();
    if (std::find(here.begin(), here.end(), param.family) != here.end()) return "";
    return std::string(name_of(param.family)) + " does not run on this processor";
  }
  double allowed(double reference) const { return GetParam().tolerance * (1 + std::abs(reference)); }
};

// Bit for bit: NaN equals itself, -0 differs from 0.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace ete
