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
  for (int64_t r = 0; r < kPanelRows; ++r) {
    const std::vector<float> w = unpacked(format, panel, r, col_begin + cols);
    for (int64_t k = 0; k < cols; ++k) tile[k * kPanelRows + r] = w[static_cast<size_t>(col_begin + k)];
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
constexpr FormatKernels format_kernels() {
  return {.layout = XLayout::natural,
          .decode = {decode<format, 1>, decode<format, 2>, decode<format, 3>, decode<format, 4>},
          .expand = expand<format>};
}

constexpr MatmulKernels kKernels = {
    .formats = {format_kernels<WeightFormat::f32>(), format_kernels<WeightFormat::bf16>(),
                format_kernels<WeightFormat::f16>(), format_kernels<WeightFormat::w8_row>(),
                format_kernels<WeightFormat::w8_g32>(), format_kernels<WeightFormat::w4_g32>(),
                format_kernels<WeightFormat::w4_g32m>(), format_kernels<WeightFormat::w4_g128>(),
                format_kernels<WeightFormat::q5_1>(), format_kernels<WeightFormat::q4_k>(),
                format_kernels<WeightFormat::q5_k>(), format_kernels<WeightFormat::q6_k>()},
    .multiply = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>}};

}  // namespace

const MatmulKernels& matmul_kernels_plain() { return kKernels; }

}  // namespace ete
