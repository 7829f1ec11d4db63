#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/ops/cuda/kernels.h"

// How launches of launch_matmul_mma_row() share out their work. None of it changes bits, so which one runs is
// measured.

namespace ete::cuda {

// `registers`: weights from memory to registers. The others through rings in shared memory: ring_P_N_W has P
// panels a block, N units of them under way in each warp, W warps for each of a panel's splits.
enum class RowShape : uint8_t {
  registers,
  ring_2_2_2,
  ring_2_3_2,
};
inline constexpr std::array<RowShape, 3> kRowShapes = {RowShape::registers, RowShape::ring_2_2_2,
                                                       RowShape::ring_2_3_2};
const char* name_of(RowShape shape);

// On the current device.
bool can_launch(RowShape row_shape, WeightFormat format);
void launch_matmul_mma_row(cudaStream_t stream, RowShape row_shape, WeightFormat format,
                           const MatmulShape& shape, const Products& products);

// The fastest shapes of the current device, measured once for each format at a few sizes; a launch gets that
// of the size nearest to its own.
class RowShapes {
 public:
  RowShapes() = default;                                       // `registers` for all
  explicit RowShapes(RowShape for_all) : for_all_(for_all) {}  // where it can be launched
  // Takes some tens of milliseconds, and device memory four times as large as the L2 cache, which it gives
  // back.
  static RowShapes measured();

  RowShape of(WeightFormat format, const MatmulShape& shape, const Products& products) const;
  std::string describe() const;  // of all but `registers`; may be empty

 private:
  struct Choice {
    WeightFormat format = WeightFormat::f32;
    int64_t panels = 0;
    int64_t cols = 0;
    RowShape shape = RowShape::registers;
  };
  RowShape for_all_ = RowShape::registers;
  std::vector<Choice> choices_;
};

}  // namespace ete::cuda
