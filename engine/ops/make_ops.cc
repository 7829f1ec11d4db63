#include "engine/device/cpu/cpu_device.h"
#include "engine/ops/cpu/cpu_ops.h"
#include "engine/ops/cuda/cuda_ops.h"
#include "engine/ops/ops.h"

namespace ete {

std::unique_ptr<Ops> make_ops(Device& device, const OpsOptions& options) {
  if (auto* cpu = dynamic_cast<CpuDevice*>(&device))
    return std::make_unique<CpuOps>(*cpu, cpu->pool(), options);
  return make_cuda_ops(device, options);
}

Math default_math(const Device& device, KernelFamily family) {
  const bool may_round =
      family == KernelFamily::automatic || family == KernelFamily::mma || family == KernelFamily::dp4a;
  const DeviceInfo info = device.info();
  return info.kind == DeviceKind::cuda && may_round && cuda_has_fast_math(info) ? Math::fast : Math::exact;
}

}  // namespace ete
