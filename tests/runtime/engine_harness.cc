#include "tests/runtime/engine_harness.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/base/check.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/safetensors_file.h"
#include "tests/runtime/detached_device.h"

namespace ete::test {

std::string model_path(const std::string& model) { return ETE_SOURCE_DIR "/tests/golden/models/" + model; }

std::map<std::string, GoldenTensor> read_golden(const std::string& model, const std::string& file) {
  const std::string path = model_path(model) + "/" + file;
  const std::string bytes = read_file(path, size_t{1} << 30);
  std::map<std::string, GoldenTensor> golden;
  for (const SourceTensor& tensor : parse_safetensors(std::as_bytes(std::span(bytes)), path)) {
    GoldenTensor& read = golden[tensor.name];
    read.shape = tensor.shape;
    if (tensor.type == SourceType::f32) {
      read.values.resize(tensor.data_bytes / sizeof(float));
      std::memcpy(read.values.data(), tensor.data, tensor.data_bytes);
    } else {
      CHECK(tensor.type == SourceType::i32, tensor.name);
      read.ids.resize(tensor.data_bytes / sizeof(int32_t));
      std::memcpy(read.ids.data(), tensor.data, tensor.data_bytes);
    }
  }
  return golden;
}

EngineOptions exact_options(const std::string& model, const std::string& device) {
  EngineOptions options;
  options.model = model_path(model);
  options.device = device;
  options.math = "exact";
  options.kv_type = "f32";
  options.threads = 2;
  options.prefix_cache = 0;
  return options;
}

PreparedModel prepare(const EngineOptions& options) {
  if (!is_detached(options.device)) return prepare_model(options);
  EngineOptions on_cpu = options;
  on_cpu.device = "cpu";
  auto device = std::make_unique<DetachedDevice>(options.threads);
  auto ops =
      device->make_plain_ops(options.device == "mixed" ? KernelFamily::automatic : KernelFamily::plain);
  return prepare_model(on_cpu, std::move(device), std::move(ops));
}

std::unique_ptr<Engine> load(const EngineOptions& options, const EngineTuning& tuning) {
  EngineTuning quick = tuning;
  if (!quick.launch) quick.launch = 1;  // measuring takes long under a sanitizer
  return std::make_unique<EngineImpl>(prepare(options), LoadProgress{}, quick);
}

EngineOptions with_residency(EngineOptions options, int64_t resident_layers, int slots) {
  options.resident_layers = std::to_string(resident_layers);
  options.slots = slots;
  return options;
}

LogitsWanted want_full_row() {
  LogitsWanted wanted;
  wanted.full_row = true;
  return wanted;
}

OpenRequest open_all_rows(std::vector<int32_t> ids) {
  OpenRequest request;
  request.prompt_ids = std::move(ids);
  request.rows = WantedRows::all;
  request.wanted = want_full_row();
  return request;
}

StepRequest one_step(int64_t position, std::vector<int32_t> ids, WantedRows rows) {
  StepRequest request;
  request.position = position;
  request.ids = std::move(ids);
  request.rows = rows;
  request.wanted = want_full_row();
  return request;
}

namespace {

void append(Rows* rows, StepResult result) {
  for (LogitsRow& row : result.rows) rows->push_back(std::move(row.full));
}

}  // namespace

Rows prompt_rows(Engine& engine, const std::vector<int32_t>& ids) {
  BlockingSession session(engine, open_all_rows(ids));
  Rows rows;
  append(&rows, session.opened());
  return rows;
}

Rows stepped_rows(Engine& engine, const std::vector<int32_t>& ids, const std::vector<int64_t>& sizes) {
  BlockingSession session(engine, {});
  Rows rows;
  size_t turn = 0;
  for (size_t done = 0; done < ids.size();) {
    const auto size = static_cast<size_t>(sizes[std::min(turn++, sizes.size() - 1)]);
    const size_t end = std::min(done + size, ids.size());
    const std::vector<int32_t> part(ids.begin() + static_cast<ptrdiff_t>(done),
                                    ids.begin() + static_cast<ptrdiff_t>(end));
    append(&rows, session.step(one_step(static_cast<int64_t>(done), part, WantedRows::all)));
    done = end;
  }
  return rows;
}

Rows forced_rows(Engine& engine, const std::vector<int32_t>& prompt, const std::vector<int32_t>& ids) {
  OpenRequest open;
  open.prompt_ids = prompt;
  open.wanted = want_full_row();
  BlockingSession session(engine, std::move(open));
  Rows rows;
  append(&rows, session.opened());
  auto position = static_cast<int64_t>(prompt.size());
  for (const int32_t id : ids) append(&rows, session.step(one_step(position++, {id})));
  return rows;
}

std::vector<int32_t> greedy_ids(Engine& engine, const std::vector<int32_t>& prompt, int64_t count) {
  OpenRequest open;
  open.prompt_ids = prompt;
  open.wanted.top_k = 1;
  BlockingSession session(engine, std::move(open));
  StepResult result = session.opened();
  std::vector<int32_t> ids;
  for (;;) {
    ids.push_back(result.rows.back().top_ids.front());
    if (static_cast<int64_t>(ids.size()) == count) return ids;
    StepRequest step;
    step.position = result.length;
    step.ids = {ids.back()};
    step.wanted.top_k = 1;
    result = session.step(std::move(step));
  }
}

int64_t first_different(const Rows& a, const Rows& b) {
  if (a.size() != b.size()) return static_cast<int64_t>(std::min(a.size(), b.size()));
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size() ||
        std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) {
      return static_cast<int64_t>(i);
    }
  }
  return -1;
}

float max_abs(const std::vector<float>& values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

float max_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::abs(a[i] - b[i]);
    if (!(difference <= most)) most = std::isnan(difference) ? INFINITY : difference;
  }
  return most;
}

}  // namespace ete::test
