#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace ete {

// What the control groups of a process let it use, those above its own included: the tightest of them counts.
struct GroupLimits {
  std::optional<size_t> memory_bytes;
  std::optional<size_t> memory_free_bytes;  // pages of files count as free: the kernel drops them when needed
  std::optional<double> cpus;               // processor seconds a second
};

// Versions 1 and 2. `membership` is a file like /proc/self/cgroup, `root` a folder like /sys/fs/cgroup; what
// cannot be read there limits nothing.
GroupLimits read_group_limits(const std::string& membership, const std::string& root);

}  // namespace ete
