#pragma once

#include <algorithm>
#include <iterator>

#include "engine/device/cuda/cuda_check.h"

// Two kernels of one stream that overlap from sm_90 on (CUDA C++ Programming Guide, "Programmatic Dependent
// Launch"): the first says when the second may be launched, the second waits before it reads what the first
// wrote. What the second reads earlier must have been there when the first was launched; where the first says
// so before it waits itself, even earlier. Weights are, which products read ahead. A kernel that says so
// after it has waited lets the next one read what was there for itself, before or without waiting for it; but
// the next one waits before it ends, since whoever waits for a kernel takes all before it for done.

namespace ete::cuda {

__device__ inline void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Only where the code that runs was built with the instructions above: for the device's own generation.
inline bool can_overlap_kernels() {
  constexpr int kBuiltFor[] = {__CUDA_ARCH_LIST__};  // as __CUDA_ARCH__, 900 for sm_90
  int device = 0, major = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major >= 9 && std::any_of(std::begin(kBuiltFor), std::end(kBuiltFor),
                                   [major](int built) { return built / 100 == major; });
}

// Launches a kernel that calls wait_for_previous_kernel() in every block.
struct BlockSize {
  unsigned threads = 0;
  size_t shared_bytes = 0;  // of memory that the launch sizes
};
template <typename... Params, typename... Args>
void launch_overlapping(cudaStream_t stream, dim3 grid, const BlockSize& block, void (*kernel)(Params...),
                        Args... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(block.threads);
  config.dynamicSmemBytes = block.shared_bytes;
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = can_overlap_kernels() ? 1 : 0;
  CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}
template <typename... Params, typename... Args>
void launch_overlapping(cudaStream_t stream, dim3 grid, unsigned threads, void (*kernel)(Params...),
                        Args... args) {
  launch_overlapping(stream, grid, BlockSize{.threads = threads}, kernel, args...);
}

}  // namespace ete::cuda
