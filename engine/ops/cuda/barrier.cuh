#pragma once

namespace ete::cuda {

// Among the warps of a block that have a barrier of hardware (1 to 15) to themselves; 0 is __syncthreads'.
__device__ inline void synchronize(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

}  // namespace ete::cuda
