#include "engine/base/check.h"
#include "engine/ops/cuda/cuda_ops.h"

// Stands in for ops/cuda in a build without it: such a build makes no CUDA device.

namespace ete {

std::unique_ptr<Ops> make_cuda_ops(Device& device, const OpsOptions&) {
  check_failed(__FILE__, __LINE__, "a device without ops", device.info().name);
}

bool cuda_has_fast_math(const DeviceInfo&) { return false; }

}  // namespace ete
