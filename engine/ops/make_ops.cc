#include "engine/base/error.h"
#include "engine/ops/cpu/cpu_ops.h"
#include "engine/ops/ops.h"

namespace ete {

std::unique_ptr<Ops> make_ops(Device& device, const OpsOptions& options) {
  if (auto* cpu = dynamic_cast<CpuDevice*>(&device)) return std::make_unique<CpuOps>(*cpu, options);
  throw Error(ErrorCode::unsupported,
              "device: " + device.info().name +
                  ": this build runs layers on the CPU device only; accepted: --device cpu");
}

}  // namespace ete
