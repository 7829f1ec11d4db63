#pragma once

#include <cstddef>
#include <string>

namespace ete {

// What this processor and its operating system run. Asked of the processor once.
struct CpuFeatures {
  bool avx2 = false;    // AVX2, FMA and F16C together
  bool avx512 = false;  // F, BW, DQ and VL together
  bool vnni = false;    // AVX-512 VNNI
  bool amx = false;     // VNNI and AMX tiles of int8, which the operating system lets this process use
};
const CpuFeatures& cpu_features();

std::string cpu_name();  // "AMD EPYC 7763", from /proc/cpuinfo; "CPU" where that says nothing

// RAM that this process may use: the machine's, or its control groups' limit if that is lower.
size_t ram_total_bytes();
size_t ram_free_bytes();  // MemAvailable, or what the groups' limits leave if that is less

// Threads to compute with when nobody says how many: the processors that this process may run on, or the
// share of them that its control groups' quota is worth, rounded up, if that is less. At least 1.
int default_threads();

}  // namespace ete
