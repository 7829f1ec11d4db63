#include "engine/ops/cuda/cuda_ops.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/device/cpu/thread_pool.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/ops/check_args.h"
#include "engine/ops/cpu/cpu_ops.h"
#include "engine/ops/cuda/argument_ring.h"
#include "engine/ops/cuda/decode_batches.h"
#include "engine/ops/cuda/decode_shape.h"
#include "engine/ops/cuda/delta_net.h"
#include "engine/ops/cuda/kernels.h"
#include "engine/ops/cuda/launch_recorder.h"
#include "engine/ops/cuda/logits_reducer.h"

namespace ete {

namespace {

constexpr int kLeastMma = 80;  // mma.m16n8k32 of int8, mma.m16n8k16 of f16 and bf16
constexpr int kLeastDp4a = 61;
constexpr size_t kCallBytes = size_t{8} << 10;  // of device memory for a call in a graph: twice what was seen

// What the runtime is asked from now on, it is asked of this device.
void make_current(Device& device) {
  const std::unique_ptr<Stream> stream = device.create_stream("ete current");
  static_cast<void>(cuda_stream_of(*stream));
}

int capability_of(const DeviceInfo& info) { return std::stoi(info.capability.substr(3)); }

class CudaOps final : public Ops {
 public:
  CudaOps(Device& device, const OpsOptions& options)
      : device_(device),
        fast_(options.math == Math::fast),
        family_(family_for(device.info(), options)),
        recorder_(device),
        ring_(device, recorder_),
        pool_(options.host_threads),
        host_(device, pool_, {}),
        host_products_(device, pool_, {.math = options.math}),
        reducer_(device, ring_, host_),
        has_mma_delta_net_(family_ == KernelFamily::mma && has_mma_delta_net(device)) {}

  std::string describe() const override {
    if (family_ == KernelFamily::plain) return "exact, plain (decode, prefill)";
    std::string rounds = "fast, " + std::string(name_of(family_)) +
                         " (decode, prefill): activations of int8 and int4 weights rounded to int8 per "
                         "32 columns";
    if (family_ == KernelFamily::dp4a) return rounds;
    return rounds +
           "; attention of prefill rows rounds queries and weights to the type of an f16 or bf16 cache" +
           (has_mma_delta_net_ ? ", Gated DeltaNet of prefill rows its operands to tf32" : "");
  }
  void measure_launches(std::span<const WeightFormat> formats) override;
  std::string describe_launches() const override { return decode_shapes_.describe(); }
  void take_launch(int index) override { decode_shapes_ = cuda::DecodeShapes(index); }
  int decode_launches() const override { return family_ == KernelFamily::mma ? cuda::kMostDecodeShapes : 1; }
  size_t workspace_bytes(const WorkspaceNeeds& needs) const override {
    size_t bytes = fast_ ? cuda::QuantizedRows::bytes_for(needs.rows, needs.cols) : 0;
    bytes = std::max(bytes, decode_scratch_bytes(needs.heads, needs.head_dim, needs.decode_tiles));
    bytes = std::max(bytes, LogitsReducer::workspace_bytes(needs.vocab));
    if (needs.delta_net.key_heads == 0) return bytes;
    const bool mma = has_mma(needs.delta_net);
    return std::max(bytes, cuda::DeltaNetScratch::bytes_for(
                               needs.delta_net, cuda::delta_net_slab_chunks(needs.rows, mma), mma));
  }
  void set_workspace(std::byte* memory, size_t bytes) override {
    workspace_ = memory;
    workspace_size_ = bytes;
  }
  size_t recording_bytes(int64_t calls) const override {
    return LaunchRecorder::kBlockBytes + static_cast<size_t>(calls) * kCallBytes;
  }
  std::unique_ptr<RecordedLaunches> record(Stream& stream, const std::function<void()>& launches) override {
    return recorder_.record(stream, launches);
  }
  bool repeat(Stream& stream, RecordedLaunches& recorded, const std::function<void()>& launches) override {
    return recorder_.repeat(stream, recorded, launches);
  }
  Ops& host_ops() override { return host_; }
  Ops& host_products() override { return host_products_; }

  void embed(Stream& stream, const PackedMatrix& table, std::vector<int32_t> ids, float scale, float* y,
             int64_t y_stride) override {
    check_embed(table, ids, y_stride);
    if (ids.empty()) return;
    ring_.begin(stream, ArgumentRing::padded(ids));
    const int32_t* put = ring_.put(ids);
    if (!recorder_.launches(table.data, table.format, ids.size(), scale, y, y_stride)) return;
    cuda::launch_embed(cuda_stream_of(stream), table, put, std::ssize(ids), scale, y, y_stride);
  }

  void rms_norm(Stream& stream, const RmsNormArgs& args) override {
    if (args.m > 0 && launches(args)) cuda::launch_rms_norm(cuda_stream_of(stream), args);
  }
  void gated_norm(Stream& stream, const RmsNormArgs& args, Activation act, const float* gate) override {
    CHECK(!args.add_to_y, "a gated norm is no residual");
    if (args.m == 0) return;
    const bool is_as_noted = launches(args);
    if (recorder_.launches(act, gate) && is_as_noted) {
      cuda::launch_rms_norm(cuda_stream_of(stream), args, {act, gate, args.y_stride});
    }
  }

  void matmul(Stream& stream, RowKind kind, const float* x, int64_t x_stride, int64_t m,
              std::vector<MatmulOutput> outputs) override;

  void rope(Stream& stream, const RopeArgs& args) override {
    check_rope(args);
    if (args.m == 0 || args.rotary_dim == 0) return;
    ring_.begin(stream, ArgumentRing::padded(args.positions));
    const int64_t* positions = ring_.put(args.positions);
    if (!recorder_.launches(args.x, args.x_stride, args.m, args.heads, args.head_dim, args.rotary_dim,
                            args.inv_freq, args.amplitude)) {
      return;
    }
    cuda::launch_rope(cuda_stream_of(stream),
                      {.x = args.x,
                       .x_stride = args.x_stride,
                       .m = args.m,
                       .heads = args.heads,
                       .head_dim = args.head_dim,
                       .rotary_dim = args.rotary_dim,
                       .inv_freq = args.inv_freq,
                       .amplitude = args.amplitude},
                      positions);
  }

  void kv_append(Stream& stream, const KvAppendArgs& args) override {
    check_kv_append(args);
    const cuda::KvRows rows = kv_rows(stream, args.segments);
    if (rows.count == 0 || !recorder_.launches(args.k, args.v, args.k_stride, args.v_stride, args.kv.type,
                                               args.kv.kv_heads, args.kv.head_dim, rows.count)) {
      return;
    }
    cuda::launch_kv_append(
        cuda_stream_of(stream),
        {.k = args.k, .v = args.v, .k_stride = args.k_stride, .v_stride = args.v_stride, .kv = args.kv},
        rows);
  }

  void attention(Stream& stream, RowKind kind, const AttentionArgs& args) override;

  void gated_activation(Stream& stream, Activation act, const float* gate, const float* up, float* y,
                        int64_t m, int64_t n, int64_t stride) override {
    if (m == 0 || !recorder_.launches(act, gate, up, y, m, n, stride)) return;
    cuda::launch_gated_activation(cuda_stream_of(stream), act, gate, up, y, m, n, stride);
  }

  void delta_net(Stream& stream, RowKind kind, const DeltaNetArgs& args) override;

  void reduce_logits(Stream& stream, const float* logits, int64_t stride, int64_t vocab,
                     std::vector<LogitsWanted> wanted, std::vector<LogitsRow*> results) override;

  void copy_rows(Stream& stream, int64_t m, std::vector<RowsCopy> copies) override {
    check_copy_rows(m, copies);
    bool launches = m > 0;
    for (const RowsCopy& copy : copies) {
      launches = recorder_.launches(m, copy.x, copy.x_stride, copy.y, copy.y_stride, copy.n, copy.bias,
                                    copy.add_to_y) &&
                 launches;
    }
    if (launches) cuda::launch_copy_rows(cuda_stream_of(stream), m, copies);
  }

  void gather_rows(Stream& stream, const float* x, int64_t x_stride, std::vector<int64_t> rows, int64_t n,
                   float* y, int64_t y_stride) override {
    if (rows.empty()) return;
    ring_.begin(stream, ArgumentRing::padded(rows));
    const int64_t* put = ring_.put(rows);
    if (!recorder_.launches(x, x_stride, rows.size(), n, y, y_stride)) return;
    cuda::launch_gather_rows(cuda_stream_of(stream), x, x_stride, put, std::ssize(rows), n, y, y_stride);
  }

 private:
  static KernelFamily family_for(const DeviceInfo& info, const OpsOptions& options);
  static bool has_mma_delta_net(Device& device) {
    make_current(device);
    return cuda::has_mma_delta_net();
  }

  cuda::KvRows kv_rows(Stream& stream, const std::vector<KvSegment>& segments);
  cuda::QueryTiles query_tiles(Stream& stream, const std::vector<KvSegment>& segments, int64_t most_rows);

  void attend_decode(Stream& stream, const cuda::AttentionView& view, const AttentionArgs& args);
  void put_elsewhere(Stream& stream, cuda::DecodeBatch* batch);
  bool launches(RowKind kind, const DeltaNetArgs& args);
  bool has_mma(const DeltaNetShape& shape) const {
    return has_mma_delta_net_ && shape.key_dim <= cuda::kMostMmaKeyDim;
  }
  bool launches(const RmsNormArgs& args) {
    return recorder_.launches(args.x, args.x_stride, args.y, args.y_stride, args.m, args.heads, args.dim,
                              args.weight, args.eps, args.add_to_y);
  }
  // Device memory until the next call of any op that takes it.
  std::byte* workspace(Stream& stream, size_t bytes);
  // The pages' results in a launch, and the softmax of a row that takes several.
  static size_t decode_scratch_bytes(int64_t heads, int64_t head_dim, int64_t tiles) {
    const int64_t at_once = std::min<int64_t>(tiles, cuda::kMostDecodeTiles);
    return static_cast<size_t>(cuda::decode_scratch_floats(heads, head_dim, at_once + 1)) * sizeof(float);
  }

  cuda::QuantizedRows quantize(Stream& stream, RowKind kind, const cuda::MatmulShape& shape);

  Device& device_;
  bool fast_;
  KernelFamily family_;
  LaunchRecorder recorder_;
  ArgumentRing ring_;
  ThreadPool pool_;
  CpuOps host_;
  CpuOps host_products_;
  LogitsReducer reducer_;
  cuda::DecodeShapes decode_shapes_;
  bool has_mma_delta_net_;
  Buffer own_workspace_;
  std::byte* workspace_ = nullptr;
  size_t workspace_size_ = 0;
};

KernelFamily CudaOps::family_for(const DeviceInfo& info, const OpsOptions& options) {
  const bool fast = options.math == Math::fast;
  std::vector<KernelFamily> runs;  // the best first
  if (!fast) runs = {KernelFamily::plain};
  if (fast && capability_of(info) >= kLeastMma) runs.push_back(KernelFamily::mma);
  if (fast && cuda_has_fast_math(info)) runs.push_back(KernelFamily::dp4a);
  if (runs.empty()) {
    throw Error(ErrorCode::invalid_argument, "math: 'fast'; accepted on " + info.name + ": exact");
  }
  if (options.family == KernelFamily::automatic) return runs.front();
  if (std::find(runs.begin(), runs.end(), options.family) != runs.end()) return options.family;
  std::string names = "auto";
  for (const KernelFamily family : runs) names += ", " + std::string(name_of(family));
  throw Error(ErrorCode::invalid_argument, "kernels: '" + std::string(name_of(options.family)) +
                                               "' does not run with --math " + (fast ? "fast" : "exact") +
                                               " on " + info.name + "; accepted: " + names);
}

void CudaOps::measure_launches(std::span<const WeightFormat> formats) {
  if (family_ != KernelFamily::mma) return;
  make_current(device_);
  decode_shapes_ = cuda::DecodeShapes::measured(formats);
}

cuda::KvRows CudaOps::kv_rows(Stream& stream, const std::vector<KvSegment>& segments) {
  std::vector<std::byte*> pages;
  std::vector<cuda::KvRow> rows;
  for (const KvSegment& segment : segments) {
    for (int64_t i = 0; i < segment.row_count; ++i) {
      rows.push_back({.row = segment.row_begin + i,
                      .position = segment.first_position + i,
                      .first_page = segment.first_page,
                      .end_page = segment.end_page(),
                      .pages_begin = std::ssize(pages)});
    }
    pages.insert(pages.end(), segment.pages.begin(), segment.pages.end());
  }
  ring_.begin(stream, ArgumentRing::padded(pages) + ArgumentRing::padded(rows));
  return {.pages = ring_.put(pages), .rows = ring_.put(rows), .count = std::ssize(rows)};
}

// Each segment's rows, at most most_rows a tile.
cuda::QueryTiles CudaOps::query_tiles(Stream& stream, const std::vector<KvSegment>& segments,
                                      int64_t most_rows) {
  std::vector<std::byte*> pages;
  std::vector<cuda::QueryTile> tiles;
  for (const KvSegment& segment : segments) {
    for (int64_t i = 0; i < segment.row_count; i += most_rows) {
      tiles.push_back({.row = segment.row_begin + i,
                       .position = segment.first_position + i,
                       .count = std::min(most_rows, segment.row_count - i),
                       .first_page = segment.first_page,
                       .end_page = segment.end_page(),
                       .pages_begin = std::ssize(pages)});
    }
    pages.insert(pages.end(), segment.pages.begin(), segment.pages.end());
  }
  ring_.begin(stream, ArgumentRing::padded(pages) + ArgumentRing::padded(tiles));
  return {.pages = ring_.put(pages), .tiles = ring_.put(tiles), .count = std::ssize(tiles)};
}

void CudaOps::attention(Stream& stream, RowKind kind, const AttentionArgs& args) {
  check_attention(args);
  const cuda::AttentionView view{.q = args.q,
                                 .q_stride = args.q_stride,
                                 .out = args.out,
                                 .out_stride = args.out_stride,
                                 .heads = args.heads,
                                 .kv = args.kv,
                                 .scale = args.scale,
                                 .window = args.window,
                                 .state = args.state};
  const bool launches =
      recorder_.launches(kind, args.q, args.q_stride, args.out, args.out_stride, args.heads, args.kv.type,
                         args.kv.kv_heads, args.kv.head_dim, args.scale, args.window, args.state, workspace_);
  if (kind == RowKind::decode) {
    attend_decode(stream, view, args);
    return;
  }
  const bool mma = family_ == KernelFamily::mma && cuda::has_mma_attention(args.kv);
  const int64_t most_rows = mma ? cuda::kMmaQueryRows : cuda::plain_query_rows(args.kv.head_dim);
  const cuda::QueryTiles tiles = query_tiles(stream, args.segments, most_rows);
  if (tiles.count == 0 || !recorder_.launches(tiles.count) || !launches) return;
  const auto launch = mma ? cuda::launch_attention_mma : cuda::launch_attention_prefill;
  launch(cuda_stream_of(stream), view, tiles);
}

bool CudaOps::launches(RowKind kind, const DeltaNetArgs& args) {
  const DeltaNetShape& shape = args.shape;
  bool launches = recorder_.launches(kind, shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim,
                                     shape.conv_kernel, shape.tiled_value_heads, args.x, args.x_stride,
                                     args.out, args.out_stride, args.conv, args.decay_rate, args.dt_bias,
                                     workspace_, workspace_size_);
  for (const DeltaNetSegment& segment : args.segments) {
    launches = recorder_.launches(segment.row_begin, segment.row_count, segment.draft_rows,
                                  segment.accepted_rows, segment.state, segment.accepted, segment.drafts);
    // The chunks of prefill rows are aligned to positions.
    if (kind == RowKind::prefill) launches = recorder_.launches(segment.first_position);
  }
  return launches;
}

void CudaOps::delta_net(Stream& stream, RowKind kind, const DeltaNetArgs& args) {
  check_delta_net(args);
  if (!launches(kind, args)) return;
  if (kind == RowKind::decode) {
    cuda::delta_net_decode(cuda_stream_of(stream), args);
    return;
  }
  const bool mma = has_mma(args.shape);
  const size_t chunk = cuda::DeltaNetScratch::bytes_for(args.shape, 1, mma);
  std::byte* scratch = workspace(stream, chunk);
  const auto chunks = static_cast<int64_t>(workspace_size_ / chunk);
  cuda::delta_net_prefill(
      cuda_stream_of(stream), args,
      {.scratch = scratch, .chunks = std::min<int64_t>(chunks, cuda::DeltaNetSlab::kMost), .mma = mma});
}

void CudaOps::attend_decode(Stream& stream, const cuda::AttentionView& view, const AttentionArgs& args) {
  auto batches = decode_batches(args, cuda::kMostDecodeTiles);
  int64_t tiles = 0;
  for (const cuda::DecodeBatch& batch : batches) tiles = std::max<int64_t>(tiles, batch.tile_count);
  if (tiles == 0) return;
  const int64_t dim = args.kv.head_dim;
  auto* scratch = reinterpret_cast<float*>(workspace(stream, decode_scratch_bytes(args.heads, dim, tiles)));
  cuda::AttentionView to_fold = view;
  if (args.state == nullptr) to_fold.state = scratch + cuda::decode_scratch_floats(args.heads, dim, tiles);
  for (cuda::DecodeBatch& batch : batches) {
    if (recorder_.is_open()) put_elsewhere(stream, &batch);
    if (!recorder_.launches(batch.tile_count, batch.row_count, batch.tiles.whole_rows)) continue;
    cuda::launch_attention_decode(cuda_stream_of(stream), to_fold, batch, scratch);
  }
}

// What changes from step to step, to where a graph may find it changed.
void CudaOps::put_elsewhere(Stream& stream, cuda::DecodeBatch* batch) {
  const std::vector<cuda::DecodeTile> tiles(batch->tiles.tile, batch->tiles.tile + batch->tile_count);
  const std::vector<cuda::DecodeRow> rows(batch->rows.row, batch->rows.row + batch->row_count);
  ring_.begin(stream, ArgumentRing::padded(tiles) + ArgumentRing::padded(rows));
  batch->tiles.elsewhere = ring_.put(tiles);
  batch->rows.elsewhere = ring_.put(rows);
}

std::byte* CudaOps::workspace(Stream& stream, size_t bytes) {
  if (bytes > workspace_size_) {
    stream.synchronize();  // earlier calls may still read what this replaces
    own_workspace_ = device_.allocate(bytes, MemorySpace::device);
    set_workspace(own_workspace_.data(), bytes);
  }
  return workspace_;
}

// x [m, cols] of the call, rounded, until the next call.
cuda::QuantizedRows CudaOps::quantize(Stream& stream, RowKind kind, const cuda::MatmulShape& shape) {
  std::byte* memory = workspace(stream, cuda::QuantizedRows::bytes_for(shape.m, shape.cols));
  const auto rows = cuda::QuantizedRows::at(memory, kind, shape.m, shape.cols);
  cuda::launch_quantize(cuda_stream_of(stream), shape, rows);
  return rows;
}

// x is rounded already where the kernels of a family and kind do not round their single row themselves.
bool rounds_its_row(KernelFamily family, RowKind kind, int64_t m) {
  return family == KernelFamily::mma && kind == RowKind::decode && m == 1;
}

// But for decode rows on tensor cores.
auto integer_products(KernelFamily family, RowKind kind) {
  if (family == KernelFamily::mma) return cuda::launch_matmul_mma_prefill;
  return kind == RowKind::decode ? cuda::launch_matmul_dp4a_decode : cuda::launch_matmul_dp4a_prefill;
}

// Products of one format share a launch.
void CudaOps::matmul(Stream& stream, RowKind kind, const float* x, int64_t x_stride, int64_t m,
                     std::vector<MatmulOutput> outputs) {
  if (m == 0 || outputs.empty()) return;
  check_matmul(x, x_stride, m, outputs);
  std::erase_if(outputs, [](const MatmulOutput& output) { return output.row_begin >= output.row_end; });
  std::stable_sort(outputs.begin(), outputs.end(),
                   [](const MatmulOutput& a, const MatmulOutput& b) { return a.w.format < b.w.format; });
  bool launches = !outputs.empty();
  for (const MatmulOutput& output : outputs) {
    launches = recorder_.launches(kind, x, x_stride, m, output.w.data, output.w.format, output.w.cols,
                                  output.row_begin, output.row_end, output.bias, output.y, output.y_stride,
                                  output.add_to_y, workspace_);
  }
  if (!launches) return;
  const cuda::MatmulShape shape{.x = x, .x_stride = x_stride, .m = m, .cols = outputs.front().w.cols};
  const auto rounds = [this](WeightFormat format) { return fast_ && cuda::has_integer_products(format); };
  const bool by_kernel = rounds_its_row(family_, kind, m);
  cuda::QuantizedRows rounded;
  if (!by_kernel && std::any_of(outputs.begin(), outputs.end(),
                                [&](const MatmulOutput& output) { return rounds(output.w.format); })) {
    rounded = quantize(stream, kind, shape);
  }
  bool beside = false;
  for (size_t first = 0; first < outputs.size();) {
    const WeightFormat format = outputs[first].w.format;
    cuda::Products products;
    products.beside = std::exchange(beside, false);
    int64_t panels = 0;
    while (first < outputs.size() && outputs[first].w.format == format &&
           products.count < cuda::kMaxProducts) {
      const MatmulOutput& output = outputs[first++];
      const auto skipped = static_cast<size_t>(output.row_begin / kPanelRows);
      panels += (output.row_end - output.row_begin + kPanelRows - 1) / kPanelRows;
      products.product[products.count++] = {
          .panels = output.w.data + skipped * panel_bytes(format, output.w.cols),
          .bias = output.bias == nullptr ? nullptr : output.bias + output.row_begin,
          .y = output.y + output.row_begin,
          .y_stride = output.y_stride,
          .rows = output.row_end - output.row_begin,
          .panel_end = panels,
          .add_to_y = output.add_to_y};
    }
    const cudaStream_t to = cuda_stream_of(stream);
    if (rounds(format) && family_ == KernelFamily::mma && kind == RowKind::decode) {
      cuda::launch_matmul_mma(to, decode_shapes_.of(format, shape, products), format, rounded, shape,
                              products);
    } else if (rounds(format)) {
      integer_products(family_, kind)(to, format, rounded, shape, products);
    } else {
      const auto launch = kind == RowKind::decode ? cuda::launch_matmul_decode : cuda::launch_matmul_prefill;
      launch(to, format, shape, products);
      beside = kind == RowKind::decode && family_ == KernelFamily::mma;
    }
  }
}

void CudaOps::reduce_logits(Stream& stream, const float* logits, int64_t stride, int64_t vocab,
                            std::vector<LogitsWanted> wanted, std::vector<LogitsRow*> results) {
  check_reduce_logits(stride, vocab, wanted, results);
  CHECK(!recorder_.is_open(), "results on the host are of one launch");
  if (wanted.empty()) return;
  reducer_.reduce(stream, {logits, stride, vocab, std::move(wanted), std::move(results)}, workspace_size_,
                  [&](size_t bytes) { return workspace(stream, bytes); });
}

}  // namespace

bool cuda_has_fast_math(const DeviceInfo& info) { return capability_of(info) >= kLeastDp4a; }

std::unique_ptr<Ops> make_cuda_ops(Device& device, const OpsOptions& options) {
  return std::make_unique<CudaOps>(device, options);
}

}  // namespace ete
