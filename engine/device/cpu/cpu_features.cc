#include "engine/device/cpu/cpu_features.h"

#include <cpuid.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace ete {

namespace {

// By CPUID itself: __builtin_cpu_supports of Clang 14 does not know f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

}  // namespace

CpuFeatures cpu_features() {
  CpuFeatures features;
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  features.vnni = features.avx512 && __builtin_cpu_supports("avx512vnni");
  return features;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

size_t ram_total_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_bytes = sysconf(_SC_PAGESIZE);
  size_t total = static_cast<size_t>(std::max(pages, 0L)) * static_cast<size_t>(page_bytes);
  // cgroup v2, then v1; "max" does not parse, and no limit in v1 is a number above all RAM.
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    size_t limit = 0;
    if (std::ifstream(path) >> limit) total = std::min(total, limit);
  }
  return total;
}

size_t ram_free_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    size_t kib = 0;
    if (fields >> name >> kib && name == "MemAvailable:") return std::min(kib * 1024, ram_total_bytes());
  }
  return ram_total_bytes();
}

}  // namespace ete
