#pragma once

#include <cstddef>
#include <string>

namespace ete {

// What this processor and its operating system run.
struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C together
  bool avx512 = false;  // F, BW, DQ and VL together
  bool vnni = false;    // AVX-512 VNNI
};
CpuFeatures cpu_features();

std::string cpu_name();  // "AMD EPYC 7763", from /proc/cpuinfo; "CPU" where that says nothing

// RAM that this process may use: the machine's, or its cgroup's limit if that is lower.
size_t ram_total_bytes();
size_t ram_free_bytes();  // MemAvailable, within the total

}  // namespace ete
