#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/ops/cuda/kernels.h"

// How products of decode rows on tensor cores share out their work. None of it changes bits, so which one
// runs is measured.

namespace ete::cuda {

// `plain`: of one row, weights from memory to registers; of more, weights through small rings. row_P_N_W: of
// one row through rings in shared memory, P panels a block, N units of them under way in each warp, W warps
// for each of a panel's splits. rows_P_N: of 2 to 16 rows through rings of N stages of P panels and of the
// rows, which as many warps share.
enum class DecodeShape : uint8_t {
  plain,
  row_2_2_2,
  row_2_3_2,
  rows_1_3,
  rows_1_4,
  rows_1_6,
  rows_2_2,
  rows_2_6,
};
const char* name_of(DecodeShape shape);

// What products of m rows may take, `plain` first.
std::span<const DecodeShape> decode_shapes_of(int64_t m);
inline constexpr int kMostDecodeShapes = 5;  // of any m

// On the current device.
bool can_launch(DecodeShape decode_shape, WeightFormat format, int64_t m);
// Products of decode rows on tensor cores, from sm_80 on. x: rounded; one row's kernel rounds shape.x itself,
// to the same bits, and takes none.
void launch_matmul_mma(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                       const QuantizedRows& x, const MatmulShape& shape, const Products& products);

// Its parts: of one row; of 2 to 16, but for `plain`.
bool can_launch_row(DecodeShape decode_shape, WeightFormat format);
void launch_matmul_mma_row(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                           const MatmulShape& shape, const Products& products);
bool can_launch_few(DecodeShape decode_shape, WeightFormat format, int64_t m);
void launch_matmul_mma_few(cudaStream_t stream, DecodeShape decode_shape, WeightFormat format,
                           const QuantizedRows& x, const MatmulShape& shape, const Products& products);

// The fastest shapes of the current device, measured once for each format at a few sizes; a launch gets that
// of the size nearest to its own.
class DecodeShapes {
 public:
  DecodeShapes() = default;  // `plain` for all
  // The one of decode_shapes_of() at index, and again from the first on; `plain` where it cannot be launched.
  explicit DecodeShapes(int index) : index_(index) {}
  // For matrices of these formats; `plain` for others. Takes some hundredths of a second a format at 4 TB/s,
  // and device memory twice as large as the largest matrix or four times as large as the L2 cache, which it
  // gives back; where there is none, `plain` is taken for all.
  static DecodeShapes measured(std::span<const WeightFormat> formats);

  DecodeShape of(WeightFormat format, const MatmulShape& shape, const Products& products) const;
  std::string describe() const;  // of all but `plain`; may be empty

 private:
  struct Choice {
    WeightFormat format = WeightFormat::f32;
    int64_t m = 0;  // up to it
    int64_t panels = 0;
    int64_t cols = 0;
    DecodeShape shape = DecodeShape::plain;
  };
  int index_ = 0;
  std::vector<Choice> choices_;  // ascending in m
};

}  // namespace ete::cuda
