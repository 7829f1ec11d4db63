#pragma once

#include <cuda_runtime_api.h>

namespace ete {

// Throws Error: resource_exhausted for memory, internal for the rest, with CUDA's name for the error and the
// place.
[[noreturn]] void cuda_failed(const char* file, int line, const char* call, cudaError_t error);

}  // namespace ete

// Every call of the CUDA runtime, and cudaGetLastError() after every launch.
#define CUDA_CHECK(call)                                                                                  \
  do {                                                                                                    \
    const cudaError_t cuda_check_error = (call);                                                          \
    if (cuda_check_error != cudaSuccess) ::ete::cuda_failed(__FILE__, __LINE__, #call, cuda_check_error); \
  } while (false)
