#include <gtest/gtest.h>

#include <cmath>

#include "engine/models/model.h"
#include "engine/state/kv_store.h"
#include "engine/state/recurrent_store.h"
#include "tests/runtime/engine_harness.h"

// The layers of a Qwen3.5 golden one by one, on one prefill: what passes between the stages of a layer, and
// what it leaves behind, against the reference's own tensors (tests/golden/README.md, intermediate).

namespace ete::test {
namespace {

constexpr float kTolerance = 1e-4f;  // of the tensor's largest value

std::vector<float> columns(const float* x, int64_t rows, int64_t stride, int64_t begin, int64_t end) {
  std::vector<float> values;
  for (int64_t row = 0; row < rows; ++row)
    values.insert(values.end(), x + row * stride + begin, x + row * stride + end);
  return values;
}

// Keeps what linear attention read and wrote last.
class WatchedRecurrence final : public Recurrence {
 public:
  explicit WatchedRecurrence(Ops& ops) : direct_(ops) {}
  void run(Stream& compute, const LayerRecurrence& layer) override {
    compute.synchronize();
    const DeltaNetShape& shape = layer.op.shape;
    const int64_t rows = layer.prefill->front().row_count;
    in_proj_qkv = columns(layer.op.x, rows, layer.op.x_stride, 0, shape.conv_width());
    direct_.run(compute, layer);
    compute.synchronize();
    core_out = columns(layer.op.out, rows, layer.op.out_stride, 0, shape.value_width());
  }
  std::vector<float> in_proj_qkv;
  std::vector<float> core_out;

 private:
  DirectRecurrence direct_;
};

// The parts of an engine that run layers, all resident and in f32.
class Layers {
 public:
  Layers(const std::string& model, const std::string& kernels)
      : prepared_(prepare([&] {
          EngineOptions options = exact_options(model);
          options.kernels = kernels;
          options.context = 512;
          return options;
        }())),
        config_(prepared_.files.config),
        arena_(*prepared_.device, prepared_.planned.placement.arena_bytes),
        stream_(prepared_.device->create_stream("compute")),
        copy_(prepared_.device->create_stream("copy")),
        store_(*prepared_.device, *prepared_.files.tensors, prepared_.weights,
               prepared_.planned.placement.layout, pool_, {}),
        streamer_(*prepared_.device, store_, arena_, *copy_,
                  {.resident = prepared_.planned.placement.resident}),
        model_(make_model(config_, *prepared_.ops, *prepared_.device, arena_, *stream_)),
        kv_(*prepared_.device, {.layout = kv_layout(config_, DType::f32),
                                .layers = config_.kv_layers(),
                                .budget_bytes = uint64_t{1} << 30}),
        states_(*prepared_.device, {.shape = config_.delta_net,
                                    .layers = config_.linear_layers(),
                                    .budget_bytes = uint64_t{1} << 30}),
        kv_access_(*prepared_.ops),
        recurrence_(*prepared_.ops) {}

  // Puts the embedding's rows in x.
  void begin(const std::vector<int32_t>& ids) {
    const auto rows = static_cast<int64_t>(ids.size());
    const ActivationSizes sizes = activation_sizes(config_);
    for (const auto& [part, bytes] : {std::pair{&pass_.act.x, sizes.x},
                                      {&pass_.act.normed, sizes.normed},
                                      {&pass_.act.qkv, sizes.qkv},
                                      {&pass_.act.mixed, sizes.mixed},
                                      {&pass_.act.gate, sizes.gate},
                                      {&pass_.act.up, sizes.up}}) {
      memory_.push_back(prepared_.device->allocate(bytes * ids.size(), MemorySpace::device));
      *part = memory_.back().as<float>();
    }
    pass_.rows = rows;
    for (int64_t i = 0; i < rows; ++i) pass_.positions.push_back(i);
    pass_.kv = kv_.layout();
    pass_.kv_access = &kv_access_;
    pass_.recurrence = &recurrence_;
    kv_.reserve(session_kv_, 0, rows);
    states_.reserve(state_, 0);
    model_->embed(*prepared_.ops, store_.embedding(), ids, pass_.act.x, *stream_);
    stream_->synchronize();
  }

  void run(int64_t layer) {
    const auto place = static_cast<size_t>(config_.place_in_kind(layer));
    page_ = session_kv_.page(0) + place * kv_.page_bytes();
    state_at_ = reinterpret_cast<float*>(state_.state() + place * states_.layer_bytes());
    pass_.prefill_segments = {
        {.row_begin = 0, .row_count = pass_.rows, .first_position = 0, .pages = {page_}}};
    pass_.prefill_states = {{.row_begin = 0, .row_count = pass_.rows, .state = state_at_}};
    model_->forward_layer(layer, streamer_.acquire(layer, *stream_), pass_, *stream_);
    stream_->synchronize();
  }

  std::vector<float> x() const {
    return columns(pass_.act.x, pass_.rows, config_.hidden_size, 0, config_.hidden_size);
  }
  std::vector<float> final_norm() {
    model_->norm(store_.final_norm(), pass_.act.x, pass_.rows, pass_.act.normed, *stream_);
    stream_->synchronize();
    return columns(pass_.act.normed, pass_.rows, config_.hidden_size, 0, config_.hidden_size);
  }
  std::vector<float> recurrent_state() const {
    return {state_at_, state_at_ + config_.delta_net.matrix_floats()};
  }
  // [conv_width, conv_kernel - 1], as the golden has it but for its first column.
  std::vector<float> conv_state() const {
    const DeltaNetShape& shape = config_.delta_net;
    const float* kept = state_at_ + shape.matrix_floats();
    std::vector<float> values;
    for (int64_t channel = 0; channel < shape.conv_width(); ++channel) {
      for (int64_t tap = 0; tap + 1 < shape.conv_kernel; ++tap) {
        values.push_back(kept[tap * shape.conv_width() + channel]);
      }
    }
    return values;
  }
  // [kv_heads, rows, head_dim] of K (0) or V (1).
  std::vector<float> cache(int64_t part) const {
    const auto* page = reinterpret_cast<const float*>(page_);
    std::vector<float> values;
    for (int64_t head = 0; head < config_.num_key_value_heads; ++head) {
      const float* at = page + (part * config_.num_key_value_heads + head) * kKvTile * config_.head_dim;
      values.insert(values.end(), at, at + pass_.rows * config_.head_dim);
    }
    return values;
  }
  const ModelConfig& config() const { return config_; }
  const WatchedRecurrence& recurrence() const { return recurrence_; }

 private:
  PreparedModel prepared_;
  ModelConfig config_;
  ThreadPool pool_{1};
  DeviceArena arena_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stream> copy_;
  WeightStore store_;
  LayerStreamer streamer_;
  std::unique_ptr<Model> model_;
  KvStore kv_;
  RecurrentStore states_;
  DirectKv kv_access_;
  WatchedRecurrence recurrence_;
  std::vector<Buffer> memory_;
  PassRows pass_;
  SessionKv session_kv_;
  RecurrentState state_;
  std::byte* page_ = nullptr;
  float* state_at_ = nullptr;
};

class StagesTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void expect(const std::string& name, const std::vector<float>& ours) const {
    const std::vector<float>& due = golden_.at(name).values;
    EXPECT_LE(max_difference(ours, due), kTolerance * max_abs(due)) << name;
  }
  // Without the golden's oldest column, which no later step reads.
  void expect_conv_state(const std::string& name, const std::vector<float>& ours) const {
    const GoldenTensor& due = golden_.at(name);
    std::vector<float> kept;
    for (size_t i = 0; i < due.values.size(); ++i) {
      if (i % static_cast<size_t>(due.shape[1]) != 0) kept.push_back(due.values[i]);
    }
    EXPECT_LE(max_difference(ours, kept), kTolerance * max_abs(kept)) << name;
  }
  std::map<std::string, GoldenTensor> golden_ =
      read_golden(std::get<0>(GetParam()), "intermediate.safetensors");
};

TEST_P(StagesTest, EveryLayerGivesWhatTheReferenceGives) {
  Layers layers(std::get<0>(GetParam()), std::get<1>(GetParam()));
  layers.begin(golden_.at("ids").ids);
  expect("embed", layers.x());
  for (int64_t layer = 0; layer < layers.config().num_hidden_layers; ++layer) {
    const std::string prefix = "layer" + std::to_string(layer) + ".";
    layers.run(layer);
    expect(prefix + "out", layers.x());
    if (layers.config().is_linear(layer)) {
      expect(prefix + "recurrent_state", layers.recurrent_state());
      expect_conv_state(prefix + "conv_state", layers.conv_state());
    } else {
      expect(prefix + "k_cache", layers.cache(0));
      expect(prefix + "v_cache", layers.cache(1));
    }
    if (layer != 0) continue;
    expect("layer0.linear_attn.in_proj_qkv", layers.recurrence().in_proj_qkv);
    expect("layer0.linear_attn.core_out", layers.recurrence().core_out);
  }
  expect("final_norm", layers.final_norm());
}

INSTANTIATE_TEST_SUITE_P(Models, StagesTest,
                         testing::Combine(testing::Values("qwen3_5", "qwen3_5_bf16"),
                                          testing::Values("plain", "auto")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param);
                         });

}  // namespace
}  // namespace ete::test
