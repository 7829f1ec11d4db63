#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/runtime/blocking_session.h"
#include "engine/runtime/engine.h"
#include "engine/runtime/engine_impl.h"
#include "tests/device/device_status.h"

namespace ete::test {

// A tensor of a golden file, widened to what tests compare.
struct GoldenTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;  // F32
  std::vector<int32_t> ids;   // I32
};

// tests/golden/models/NAME/FILE.safetensors.
std::map<std::string, GoldenTensor> read_golden(const std::string& model, const std::string& file);
std::string model_path(const std::string& model);

// Exact math, a KV cache of f32, and every position computed: what goldens are judged by.
EngineOptions exact_options(const std::string& model, const std::string& device = "cpu");

// Options of a path's device, or of one of detached_device.h.
PreparedModel prepare(const EngineOptions& options);
std::unique_ptr<Engine> load(const EngineOptions& options, const EngineTuning& tuning = {});

EngineOptions with_residency(EngineOptions options, int64_t resident_layers, int slots);

// "detached", or "mixed", on which host threads multiply by the processor's best kernels: detached_device.h.
inline bool is_detached(const std::string& device) { return device == "detached" || device == "mixed"; }

// Where a test runs and by which kernels.
struct Path {
  std::string device;
  std::string kernels;
  double host_share = 0;
};
// Empty: the device works here.
inline std::string why_skipped(const Path& path) {
  return is_detached(path.device) ? "" : why_absent(path.device);
}
inline std::string name_of_path(const Path& path) {
  const std::string name = kind_of(path.device) + "_" + path.kernels;
  const int percent = static_cast<int>(100 * path.host_share);
  return percent > 0 ? name + "_share" + std::to_string(percent) : name;
}

using Rows = std::vector<std::vector<float>>;  // [rows][vocab]

// Whole rows, one for each prompt id.
Rows prompt_rows(Engine& engine, const std::vector<int32_t>& ids);
// The same, in Steps of several ids each; sizes are taken in turn, the last again and again.
Rows stepped_rows(Engine& engine, const std::vector<int32_t>& ids, const std::vector<int64_t>& sizes);
// The prompt's last row, then one row for each of `ids`, fed one by one.
Rows forced_rows(Engine& engine, const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids);
// `count` ids, each the best of the row before.
std::vector<int32_t> greedy_ids(Engine& engine, const std::vector<int32_t>& prompt, int64_t count);

// Index of the first row whose bits differ; -1: none.
int64_t first_different(const Rows& a, const Rows& b);

float max_abs(const std::vector<float>& values);
// Infinite when lengths differ or a value is NaN.
float max_difference(std::span<const float> a, std::span<const float> b);

OpenRequest open_all_rows(std::vector<int32_t> ids);
LogitsWanted want_full_row();
StepRequest one_step(int64_t position, std::vector<int32_t> ids, WantedRows rows = WantedRows::last);

}  // namespace ete::test
