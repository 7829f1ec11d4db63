#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device.h"

// NVIDIA GPUs through the CUDA runtime. Plain C++: no CUDA header is seen outside device/cuda and ops/cuda.

namespace ete {

// Error(unavailable) when the driver or that GPU does not work, saying why.
std::unique_ptr<Device> make_cuda_device(int ordinal);

// ("cuda:0", "ok" or why not) for each GPU; one ("cuda", why) when there is none.
std::vector<std::pair<std::string, std::string>> list_cuda_devices();

}  // namespace ete
