#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/device/cuda/cuda_check.h"

namespace ete::cuda {

// Of the current device.
inline int64_t multiprocessor_count() {
  int device = 0, count = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace ete::cuda
