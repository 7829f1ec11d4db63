#include "engine/ops/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>

#include "engine/base/check.h"
#include "engine/device/cpu/cpu_features.h"
#include "engine/ops/check_args.h"
#include "engine/ops/cpu/matmul_kernels.h"

namespace ete {

namespace {

constexpr int64_t kChunkRows = 516;  // rows of x that share one expanded tile: a multiple of kTileRows
constexpr int64_t kGroupPanels = 8;  // panels expanded together: 8 x 256 x 16 f32 is 128 KiB, of the L2 cache
constexpr int64_t kTasksPerThread = 8;  // for balance
constexpr int64_t kMostPanels = 32;  // of a decode task: others wait no longer for a thread that is held up

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

int64_t padded_cols(const MatmulOutput& output) {
  return round_up(output.w.cols, block_cols(output.w.format));
}

int64_t panels_of(const MatmulOutput& output) {
  return round_up(output.row_end - output.row_begin, kPanelRows) / kPanelRows;
}

const MatmulKernels& kernels_of(KernelFamily family) {
  switch (family) {
    case KernelFamily::plain:
      return matmul_kernels_plain();
    case KernelFamily::avx2:
      return matmul_kernels_avx2();
    case KernelFamily::avx512:
      return matmul_kernels_avx512();
    case KernelFamily::vnni:
      return matmul_kernels_vnni();
    case KernelFamily::amx:
      return matmul_kernels_amx();
    default:
      check_failed(__FILE__, __LINE__, "KernelFamily", std::string(name_of(family)));
  }
}

// One call: what every task of it reads.
struct Call {
  const CpuContext& context;
  const MatmulKernels& kernels;
  const float* x;  // [m, x_stride]
  int64_t x_stride;
  int64_t m;
  int64_t cols;  // logical, of x and of every matrix
  const std::vector<MatmulOutput>& outputs;
};

// A run of panels of one output.
struct PanelRun {
  const MatmulOutput* output;
  int64_t panel_begin;  // within the matrix
  int64_t panel_end;
  int64_t row_begin;  // of x
  int64_t row_end;
};

// Cuts all outputs (by panels) and x (by rows) into tasks, none over a chunk or group, enough for balance.
std::vector<PanelRun> cut(const Call& call, int64_t max_panels, int64_t chunk_rows) {
  int64_t panels = 0;
  for (const MatmulOutput& output : call.outputs) panels += panels_of(output);
  const int64_t chunks = round_up(call.m, chunk_rows) / chunk_rows;
  const int64_t wanted = kTasksPerThread * call.context.pool.size();
  const int64_t run = std::clamp<int64_t>(panels * chunks / wanted, 1, max_panels);
  std::vector<PanelRun> runs;
  for (const MatmulOutput& output : call.outputs) {
    const int64_t first = output.row_begin / kPanelRows;
    const int64_t last = first + panels_of(output);
    for (int64_t panel = first; panel < last; panel += run) {
      for (int64_t row = 0; row < call.m; row += chunk_rows) {
        runs.push_back(
            {&output, panel, std::min(panel + run, last), row, std::min(row + chunk_rows, call.m)});
      }
    }
  }
  return runs;
}

// x in one layout, padded to `cols` columns with zeros, and its block sums.
class ArrangedInput {
 public:
  ArrangedInput(const Call& call, XLayout layout, int64_t cols) : cols_(cols) {
    if (layout == XLayout::natural && cols == call.cols) {
      x_ = call.x;
      stride_ = call.x_stride;
      return;
    }
    const size_t elements = static_cast<size_t>(call.m * cols);
    const int64_t sum_count = cols / 32;
    buffer_.reset(new float[elements]);
    sums_.reset(new float[static_cast<size_t>(call.m * sum_count)]);
    std::vector<float> padded(static_cast<size_t>(cols));
    for (int64_t i = 0; i < call.m; ++i) {
      const float* row = call.x + i * call.x_stride;
      float* to = buffer_.get() + i * cols;
      if (cols != call.cols) {
        std::copy_n(row, call.cols, padded.data());
        row = padded.data();
      }
      if (layout == XLayout::natural) {
        std::copy_n(row, cols, to);
      } else {
        call.kernels.arrange(layout, row, cols, to);
        call.kernels.sum_blocks(row, cols, sums_.get() + i * sum_count);
      }
    }
    x_ = buffer_.get();
    stride_ = cols;
  }

  // Row i and those after it.
  DecodeInput rows_from(int64_t i) const {
    return {.x = x_ + i * stride_,
            .x_stride = stride_,
            .block_sums = sums_ ? sums_.get() + i * (cols_ / 32) : nullptr,
            .cols = cols_};
  }
  int64_t cols() const { return cols_; }

 private:
  int64_t cols_;
  const float* x_ = nullptr;
  int64_t stride_ = 0;
  std::unique_ptr<float[]> buffer_;
  std::unique_ptr<float[]> sums_;
};

// One of each (layout, padded width) that the outputs need; x is shared, so there are one or two.
class ArrangedInputs {
 public:
  ArrangedInputs(const Call& call, RowKind kind) {
    for (const MatmulOutput& output : call.outputs) {
      const XLayout layout = layout_of(call, kind, output);
      if (!find(layout, padded_cols(output))) {
        inputs_.emplace_back(layout, ArrangedInput(call, layout, padded_cols(output)));
      }
    }
  }
  const ArrangedInput& of(const Call& call, RowKind kind, const MatmulOutput& output) const {
    return *find(layout_of(call, kind, output), padded_cols(output));
  }

 private:
  static XLayout layout_of(const Call& call, RowKind kind, const MatmulOutput& output) {
    if (kind == RowKind::prefill) return XLayout::natural;
    return call.kernels.formats[static_cast<size_t>(output.w.format)].layout;
  }
  const ArrangedInput* find(XLayout layout, int64_t cols) const {
    for (const auto& [held, input] : inputs_) {
      if (held == layout && input.cols() == cols) return &input;
    }
    return nullptr;
  }

  std::vector<std::pair<XLayout, ArrangedInput>> inputs_;
};

// sums [m, 16] of one panel to rows [row, row + m) of y.
void store_sums(const MatmulOutput& output, int64_t panel, int64_t row, int64_t m, const float* sums) {
  const int64_t first = panel * kPanelRows;
  const int64_t count = std::min(kPanelRows, output.row_end - first);
  for (int64_t i = 0; i < m; ++i) {
    float* y = output.y + (row + i) * output.y_stride + first;
    for (int64_t r = 0; r < count; ++r) {
      float value = sums[i * kPanelRows + r];
      if (output.bias) value += output.bias[first + r];
      y[r] = output.add_to_y ? y[r] + value : value;
    }
  }
}

// Every panel of every output with up to `rows_at_once` rows of x: multiply(output, panel's bytes, first row,
// how many, sums [m, 16]).
template <class Multiply>
void for_each_panel(const Call& call, int64_t rows_at_once, const Multiply& multiply) {
  const std::vector<PanelRun> runs = cut(call, kMostPanels, call.m);
  call.context.pool.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t task, int) {
    const PanelRun& run = runs[static_cast<size_t>(task)];
    const PackedMatrix& w = run.output->w;
    const size_t bytes = panel_bytes(w.format, w.cols);
    for (int64_t panel = run.panel_begin; panel < run.panel_end; ++panel) {
      for (int64_t row = 0; row < call.m; row += rows_at_once) {
        const int64_t m = std::min(rows_at_once, call.m - row);
        alignas(64) float sums[kTiledRows * kPanelRows];
        multiply(*run.output, w.data + static_cast<size_t>(panel) * bytes, row, m, sums);
        store_sums(*run.output, panel, row, m, sums);
      }
    }
  });
}

const FormatKernels& kernels_for(const Call& call, const MatmulOutput& output) {
  return call.kernels.formats[static_cast<size_t>(output.w.format)];
}

void run_decode(const Call& call) {
  const ArrangedInputs inputs(call, RowKind::decode);
  for_each_panel(
      call, kDecodeRows,
      [&](const MatmulOutput& output, const std::byte* panel, int64_t row, int64_t m, float* sums) {
        const ArrangedInput& input = inputs.of(call, RowKind::decode, output);
        kernels_for(call, output).decode[m - 1](panel, input.rows_from(row), sums);
      });
}

// x rounded for Math::fast, for outputs whose width pads to `cols`.
class RoundedRows {
 public:
  RoundedRows(const Call& call, int64_t cols)
      : cols_(cols),
        q_(static_cast<size_t>(call.m * cols)),
        scales_(q_.size() / 32),
        sums_(q_.size() / 32),
        excess_(call.kernels.integer_dots ? q_.size() / 8 : 0) {
    for_row_blocks(call.context.pool, call.m, cols,
                   [&](int64_t begin, int64_t end) { round_rows(call, begin, end); });
  }

  RoundedInput rows_from(int64_t i) const {
    const int64_t block = i * cols_ / 32;
    return {.q = q_.data() + i * cols_,
            .scales = scales_.data() + block,
            .sums = sums_.data() + block,
            .excess = excess_.empty() ? nullptr : excess_.data() + 4 * block,
            .cols = cols_};
  }

 private:
  void round_rows(const Call& call, int64_t begin, int64_t end) {
    std::vector<float> padded(call.cols == cols_ ? 0 : static_cast<size_t>(cols_));
    for (int64_t i = begin; i < end; ++i) {
      const float* row = call.x + i * call.x_stride;
      if (call.cols != cols_) {
        std::copy_n(row, call.cols, padded.data());
        row = padded.data();
      }
      const int64_t block = i * cols_ / 32;
      call.kernels.round_blocks(row, cols_,
                                {.q = q_.data() + i * cols_,
                                 .scales = scales_.data() + block,
                                 .sums = sums_.data() + block,
                                 .excess = excess_.empty() ? nullptr : excess_.data() + 4 * block});
    }
  }

  int64_t cols_;
  std::vector<int8_t> q_;
  std::vector<float> scales_, sums_;
  std::vector<int32_t> excess_;
};

// x of each padded width that the outputs have, as `Rows`.
template <class Rows>
std::map<int64_t, Rows> rows_by_width(const Call& call) {
  std::map<int64_t, Rows> inputs;
  for (const MatmulOutput& output : call.outputs) {
    inputs.try_emplace(padded_cols(output), call, padded_cols(output));
  }
  return inputs;
}

// Both kinds of rows: the integer dot serves four at a time, which is the faster way for prefill rows only
// where it is one instruction.
void run_rounded(const Call& call) {
  const auto inputs = rows_by_width<RoundedRows>(call);
  for_each_panel(
      call, kDecodeRows,
      [&](const MatmulOutput& output, const std::byte* panel, int64_t row, int64_t m, float* sums) {
        const RoundedRows& input = inputs.at(padded_cols(output));
        kernels_for(call, output).multiply_rounded[m - 1](panel, input.rows_from(row), sums);
      });
}

// x rounded as RoundedRows does, as tiles read it.
class TiledRows {
 public:
  TiledRows(const Call& call, int64_t cols)
      : cols_(cols),
        q_(static_cast<size_t>(round_up(call.m, kTiledRows) * cols)),
        scales_(q_.size() / 32),
        sums_(q_.size() / 32) {
    for_row_blocks(call.context.pool, static_cast<int64_t>(scales_.size()) / kTiledRows, 32 * kTiledRows,
                   [&](int64_t begin, int64_t end) {
                     for (int64_t block = begin; block < end; ++block) round_block(call, block);
                   });
  }

  // Rows i to i + kTiledRows; i is a multiple of that.
  TiledInput rows_from(int64_t i) const {
    return {.q = q_.data() + i * cols_,
            .scales = scales_.data() + i * cols_ / 32,
            .sums = sums_.data() + i * cols_ / 32,
            .cols = cols_};
  }

 private:
  // 32 columns of kTiledRows rows.
  void round_block(const Call& call, int64_t block) {
    const int64_t col = block % (cols_ / 32) * 32;
    const int64_t first_row = block / (cols_ / 32) * kTiledRows;
    const int64_t rows = std::min(kTiledRows, call.m - first_row);
    const int64_t cols = std::clamp<int64_t>(call.cols - col, 0, 32);
    int8_t* tile = q_.data() + 32 * kTiledRows * block;  // [8, 16 rows, 4]
    for (int64_t r = 0; r < rows; ++r) {
      float padded[32] = {};
      const float* x = call.x + (first_row + r) * call.x_stride + col;
      if (cols < 32) x = std::copy_n(x, cols, padded) - cols;
      int8_t q[32];
      const int64_t at = kTiledRows * block + r;
      call.kernels.round_blocks(
          x, 32, {.q = q, .scales = &scales_.at(at), .sums = &sums_.at(at), .excess = nullptr});
      for (int64_t k = 0; k < 32; k += 4) std::copy_n(q + k, 4, tile + kTiledRows * k + 4 * r);
    }
  }

  int64_t cols_;
  std::vector<int8_t> q_;             // [m / 16, cols / 4, 16, 4]
  std::vector<float> scales_, sums_;  // [m / 16, cols / 32, 16]
};

void run_tiled(const Call& call) {
  const auto inputs = rows_by_width<TiledRows>(call);
  for_each_panel(call, kTiledRows,
                 [&](const MatmulOutput& output, const std::byte* panel, int64_t row, int64_t, float* sums) {
                   const TiledRows& input = inputs.at(padded_cols(output));
                   kernels_for(call, output).multiply_tiled(panel, input.rows_from(row), sums);
                 });
}

// What the K-ranges' products are added to: 0, the bias, y, or both.
void begin_rows(const PanelRun& run) {
  const MatmulOutput& output = *run.output;
  const int64_t first = run.panel_begin * kPanelRows;
  const int64_t last = std::min(run.panel_end * kPanelRows, output.row_end);
  for (int64_t i = run.row_begin; i < run.row_end; ++i) {
    float* y = output.y + i * output.y_stride;
    for (int64_t r = first; r < last; ++r) {
      const float bias = output.bias ? output.bias[r] : 0.0f;
      y[r] = output.add_to_y ? y[r] + bias : bias;
    }
  }
}

// A register block at the right edge of W, where y has fewer than 16 columns left.
void multiply_edge(const Call& call, const float* tile, const DecodeInput& x, int64_t m, int64_t cols,
                   int64_t count, float* y, int64_t y_stride) {
  float block[kTileRows * kPanelRows] = {};
  call.kernels.multiply[m - 1](tile, x.x, x.x_stride, cols, block, kPanelRows);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < count; ++r) y[i * y_stride + r] += block[i * kPanelRows + r];
  }
}

// One K-range of a run: expands its panels, then passes the rows of x over them.
void multiply_range(const Call& call, const PanelRun& run, const ArrangedInput& input, int64_t col_begin,
                    float* tiles) {
  const MatmulOutput& output = *run.output;
  const int64_t cols = std::min(kTileCols, input.cols() - col_begin);
  const size_t bytes = panel_bytes(output.w.format, output.w.cols);
  constexpr int64_t kTileElements = kTileCols * kPanelRows;
  for (int64_t panel = run.panel_begin; panel < run.panel_end; ++panel) {
    call.kernels.formats[static_cast<size_t>(output.w.format)].expand(
        output.w.data + static_cast<size_t>(panel) * bytes, col_begin, cols,
        tiles + (panel - run.panel_begin) * kTileElements);
  }
  for (int64_t row = run.row_begin; row < run.row_end; row += kTileRows) {
    const int64_t m = std::min(kTileRows, run.row_end - row);
    DecodeInput x = input.rows_from(row);
    x.x += col_begin;
    for (int64_t panel = run.panel_begin; panel < run.panel_end; ++panel) {
      const float* tile = tiles + (panel - run.panel_begin) * kTileElements;
      const int64_t first = panel * kPanelRows;
      float* y = output.y + row * output.y_stride + first;
      if (first + kPanelRows <= output.row_end) {
        call.kernels.multiply[m - 1](tile, x.x, x.x_stride, cols, y, output.y_stride);
      } else {
        multiply_edge(call, tile, x, m, cols, output.row_end - first, y, output.y_stride);
      }
    }
  }
}

void run_prefill(const Call& call) {
  const ArrangedInputs inputs(call, RowKind::prefill);
  const std::vector<PanelRun> runs = cut(call, kGroupPanels, kChunkRows);
  constexpr int64_t kWorkerElements = kGroupPanels * kTileCols * kPanelRows;
  call.context.pool.parallel_for(static_cast<int64_t>(runs.size()), [&](int64_t task, int worker) {
    const PanelRun& run = runs[static_cast<size_t>(task)];
    const ArrangedInput& input = inputs.of(call, RowKind::prefill, *run.output);
    float* tiles = call.context.workspace.of_worker(worker, kWorkerElements);
    begin_rows(run);
    for (int64_t col = 0; col < input.cols(); col += kTileCols) {
      multiply_range(call, run, input, col, tiles);
    }
  });
}

}  // namespace

MatmulPath::MatmulPath(KernelFamily family, Math math)
    : MatmulPath(kernels_of(resolve_matmul_family(family, math)), math) {}

bool MatmulPath::rounds(RowKind kind, WeightFormat format) const {
  return math_ == Math::fast && (kind == RowKind::decode || kernels_->integer_dots) &&
         kernels_->formats[static_cast<size_t>(format)].multiply_rounded[0] != nullptr;
}

void matmul_cpu(const CpuContext& context, const MatmulPath& path, RowKind kind, const float* x,
                int64_t x_stride, int64_t m, const std::vector<MatmulOutput>& outputs) {
  if (m == 0 || outputs.empty()) return;
  check_matmul(x, x_stride, m, outputs);
  const int64_t cols = outputs.front().w.cols;
  std::vector<MatmulOutput> exact, rounded;
  for (const MatmulOutput& output : outputs) {
    (path.rounds(kind, output.w.format) ? rounded : exact).push_back(output);
  }
  if (!rounded.empty()) {
    const Call call{context, path.kernels(), x, x_stride, m, cols, rounded};
    // A tile takes as long for one row as for all that it has.
    if (m > kDecodeRows && path.kernels().tiles) {
      run_tiled(call);
    } else {
      run_rounded(call);
    }
  }
  if (exact.empty()) return;
  const Call call{context, path.kernels(), x, x_stride, m, cols, exact};
  if (kind == RowKind::decode) return run_decode(call);
  run_prefill(call);
}

std::vector<KernelFamily> supported_families(Math math) {
  const CpuFeatures features = cpu_features();
  std::vector<KernelFamily> families{KernelFamily::plain};
  if (features.avx2) families.push_back(KernelFamily::avx2);
  if (features.avx512) families.push_back(KernelFamily::avx512);
  if (features.vnni && math == Math::fast) families.push_back(KernelFamily::vnni);
  if (features.amx && math == Math::fast) families.push_back(KernelFamily::amx);
  return families;
}

KernelFamily best_matmul_family(Math math) { return supported_families(math).back(); }

KernelFamily resolve_matmul_family(KernelFamily family, Math math) {
  if (family == KernelFamily::automatic) return best_matmul_family(math);
  std::string names;
  for (const KernelFamily supported : supported_families(math)) {
    if (supported == family) return family;
    names += (names.empty() ? "" : ", ") + std::string(name_of(supported));
  }
  throw Error(ErrorCode::invalid_argument,
              "kernels: '" + std::string(name_of(family)) + "' does not run on this processor with --math " +
                  (math == Math::exact ? "exact" : "fast") + "; accepted: auto, " + names);
}

}  // namespace ete
