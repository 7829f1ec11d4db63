#pragma once

#include <cstddef>
#include <cstdint>

// Copies from global to shared memory that run beside a kernel's instructions (PTX ISA, cp.async; sm_80 on).

namespace ete::cuda {

__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// 16 bytes, both addresses aligned to them; zeros where `exists` is false, and `from` is not read then.
__device__ inline void copy_async(void* to, const void* from, bool exists = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from)), "r"(exists ? 16 : 0)
               : "memory");
#endif
}

__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until all but this thread's last kPending commits are there.
template <int kPending>
__device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace ete::cuda
