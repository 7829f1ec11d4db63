#pragma once

#include <cuda_runtime_api.h>

#include "engine/device/device.h"

namespace ete {

// The runtime's handle behind a stream of a CUDA device, that device made current on the calling thread.
// CHECK fails for a stream of another device.
cudaStream_t cuda_stream_of(Stream& stream);

}  // namespace ete
