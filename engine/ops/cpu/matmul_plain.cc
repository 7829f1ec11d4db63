#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/ops/cpu/matmul_kernels.h"

// The oracle of every other family: the stored weights one by one, multiplied and added in ascending order of
// column.

namespace ete {

namespace {

std::vector<float> unpacked(WeightFormat format, const std::byte* panel, int64_t r, int64_t cols) {
  std::vector<float> row(static_cast<size_t>(cols));
  unpack_row(PackedMatrix{format, kPanelRows, cols, panel}, r, row.data());
  return row;
}

template <WeightFormat format, int64_t m>
void decode(const std::byte* panel, const DecodeInput& input, float* sums) {
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const std::vector<float> w = unpacked(format, panel, r, input.cols);
    for (int64_t i = 0; i < m; ++i) {
      const float* x = input.x + i * input.x_stride;
      float sum = 0;
      for (int64_t k = 0; k < input.cols; ++k) sum += w[static_cast<size_t>(k)] * x[k];
      sums[i * kPanelRows + r] = sum;
    }
  }
}

template <WeightFormat format>
void expand(const std::byte* panel, int64_t col_begin, int64_t cols, float* tile) {
  // Blocks of columns stand alone, but for a panel that begins with its rows' scales.
  const int64_t skipped = format == WeightFormat::w8_row ? 0 : col_begin;
  const std::byte* blocks = panel + (skipped > 0 ? panel_bytes(format, skipped) : 0);
  const int64_t first = col_begin - skipped;
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const std::vector<float> w = unpacked(format, blocks, r, first + cols);
    for (int64_t k = 0; k < cols; ++k) tile[k * kPanelRows + r] = w[static_cast<size_t>(first + k)];
  }
}

template <WeightFormat format, int64_t m>
void multiply_rounded(const std::byte* panel, const RoundedInput& input, float* sums) {
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const std::vector<float> w = unpacked(format, panel, r, input.cols);
    for (int64_t i = 0; i < m; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < input.cols; ++k) {
        const int64_t at = i * input.cols + k;
        sum += w[static_cast<size_t>(k)] * (input.scales[at / 32] * static_cast<float>(input.q[at]));
      }
      sums[i * kPanelRows + r] = sum;
    }
  }
}

void round_blocks(const float* x, int64_t cols, const RoundedRow& out) {
  for (int64_t block = 0; block < cols / 32; ++block) {
    float absmax = 0;
    bool finite = true;
    for (int64_t k = 32 * block; k < 32 * block + 32; ++k) {
      finite = finite && std::isfinite(x[k]);
      absmax = std::max(absmax, std::fabs(x[k]));
    }
    if (!finite || absmax < kLeastRounded) {
      std::fill_n(out.q + 32 * block, 32, int8_t{0});
      out.scales[block] = out.sums[block] = finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float inverse = 127.0f / absmax;
    int32_t sum = 0;
    for (int64_t k = 32 * block; k < 32 * block + 32; ++k) {
      out.q[k] = static_cast<int8_t>(std::nearbyintf(x[k] * inverse));
      sum += out.q[k];
    }
    out.scales[block] = absmax / 127.0f;
    out.sums[block] = out.scales[block] * static_cast<float>(sum);
  }
}

template <int64_t m>
void multiply(const float* tile, const float* x, int64_t x_stride, int64_t cols, float* y, int64_t y_stride) {
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      float sum = 0;
      for (int64_t k = 0; k < cols; ++k) sum += tile[k * kPanelRows + r] * x[i * x_stride + k];
      y[i * y_stride + r] += sum;
    }
  }
}

template <WeightFormat format>
constexpr FormatKernels float_kernels() {
  return {.layout = XLayout::natural,
          .decode = {decode<format, 1>, decode<format, 2>, decode<format, 3>, decode<format, 4>},
          .expand = expand<format>};
}

template <WeightFormat format>
constexpr FormatKernels packed_kernels() {
  FormatKernels kernels = float_kernels<format>();
  kernels.multiply_rounded[0] = multiply_rounded<format, 1>;
  kernels.multiply_rounded[1] = multiply_rounded<format, 2>;
  kernels.multiply_rounded[2] = multiply_rounded<format, 3>;
  kernels.multiply_rounded[3] = multiply_rounded<format, 4>;
  return kernels;
}

constexpr MatmulKernels kKernels = {
    .formats = {float_kernels<WeightFormat::f32>(), float_kernels<WeightFormat::bf16>(),
                float_kernels<WeightFormat::f16>(), packed_kernels<WeightFormat::w8_row>(),
                packed_kernels<WeightFormat::w8_g32>(), packed_kernels<WeightFormat::w4_g32>(),
                packed_kernels<WeightFormat::w4_g32m>(), packed_kernels<WeightFormat::w4_g128>(),
                packed_kernels<WeightFormat::q5_1>(), packed_kernels<WeightFormat::q4_k>(),
                packed_kernels<WeightFormat::q5_k>(), packed_kernels<WeightFormat::q6_k>()},
    .round_blocks = round_blocks,
    .multiply = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>}};

}  // namespace

const MatmulKernels& matmul_kernels_plain() { return kKernels; }

}  // namespace ete
