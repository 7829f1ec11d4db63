#pragma once

#include <memory>

#include "engine/device/device.h"

namespace ete {

// Waits by a kernel of one thread: work of host_async would hold up that of every other stream.
std::unique_ptr<LinkPacer> make_cuda_pacer(Device& device, uint64_t bytes_per_second);

}  // namespace ete
