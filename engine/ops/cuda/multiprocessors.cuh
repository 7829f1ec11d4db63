#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/device/cuda/cuda_check.h"

namespace ete::cuda {

// Of the current device.
inline int attribute_of_device(cudaDeviceAttr attribute) {
  int device = 0, value = 0;
  CUDA_CHECK(cudaGetDevice(&device));
  CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}
inline int64_t multiprocessor_count() { return attribute_of_device(cudaDevAttrMultiProcessorCount); }

// Whether a block may have so much shared memory, filled by cp.async.
inline bool has_rings_of(int bytes) {
  return attribute_of_device(cudaDevAttrComputeCapabilityMajor) >= 8 &&
         attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin) >= bytes;
}

}  // namespace ete::cuda
