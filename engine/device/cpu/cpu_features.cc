#include "engine/device/cpu/cpu_features.h"

#include <cpuid.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <thread>

#include "engine/device/cpu/host_limits.h"

namespace ete {

namespace {

// By CPUID itself: __builtin_cpu_supports of Clang 14 does not know f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Linux gives the 8 KiB of tiles to a process that asks, and to all threads of it.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h since Linux 5.16
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// By CPUID itself: the compilers' own names for them are newer than some that build this.
bool has_int8_tiles() {
  constexpr unsigned kTiles = 1u << 24, kInt8 = 1u << 25;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0 && (d & kInt8) != 0;
}

CpuFeatures ask_processor() {
  CpuFeatures features;
  __builtin_cpu_init();
  features.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl");
  features.vnni = features.avx512 && __builtin_cpu_supports("avx512vnni");
  features.amx = features.vnni && has_int8_tiles() && may_use_tiles();
  return features;
}

GroupLimits group_limits() { return read_group_limits("/proc/self/cgroup", "/sys/fs/cgroup"); }

}  // namespace

const CpuFeatures& cpu_features() {
  // CPUID leaves a virtual machine: tens of microseconds for all that is asked here.
  static const CpuFeatures features = ask_processor();
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
  const size_t total = static_cast<size_t>(std::max(pages, 0L)) * static_cast<size_t>(page_bytes);
  return std::min(total, group_limits().memory_bytes.value_or(total));
}

size_t ram_free_bytes() {
  const size_t of_groups = group_limits().memory_free_bytes.value_or(SIZE_MAX);
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    size_t kib = 0;
    if (fields >> name >> kib && name == "MemAvailable:") return std::min(kib * 1024, of_groups);
  }
  return std::min(ram_total_bytes(), of_groups);
}

int default_threads() {
  cpu_set_t allowed;
  int count = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) count = CPU_COUNT(&allowed);
  const double quota = group_limits().cpus.value_or(count);
  return std::max(1, static_cast<int>(std::min<double>(count, std::ceil(quota))));
}

}  // namespace ete
