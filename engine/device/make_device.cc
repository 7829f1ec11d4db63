#include <charconv>

#include "engine/base/error.h"
#include "engine/device/cpu/cpu_device.h"
#include "engine/device/cuda/cuda_device.h"

namespace ete {

namespace {

[[noreturn]] void refuse_name(const std::string& name) {
  throw Error(ErrorCode::invalid_argument, "device: '" + name + "'; accepted: auto, cpu, cuda, cuda:N");
}

// "cuda" or "cuda:N".
int cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) refuse_name(name);
  int ordinal = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, ordinal);
  if (error != std::errc() || stop != end || ordinal < 0) refuse_name(name);
  return ordinal;
}

}  // namespace

std::unique_ptr<Device> make_device(const DeviceOptions& options) {
  const bool is_auto = options.device == "auto";
  if (options.device == "cpu") return std::make_unique<CpuDevice>(options.threads);
  const int ordinal = is_auto ? 0 : cuda_ordinal(options.device);
  try {
#if ETE_HAVE_CUDA
    return make_cuda_device(ordinal);
#else
    throw Error(ErrorCode::unavailable,
                "device: cuda:" + std::to_string(ordinal) + ": this build has no CUDA; accepted: auto, cpu");
#endif
  } catch (const Error&) {
    if (!is_auto) throw;
  }
  return std::make_unique<CpuDevice>(options.threads);
}

std::vector<std::pair<std::string, std::string>> list_devices() {
  std::vector<std::pair<std::string, std::string>> devices = {{"cpu", "ok"}};
#if ETE_HAVE_CUDA
  for (auto& device : list_cuda_devices()) devices.push_back(std::move(device));
#else
  devices.emplace_back("cuda", "this build has no CUDA");
#endif
  return devices;
}

}  // namespace ete
