#include "engine/device/cpu/host_limits.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

namespace ete {

namespace {

namespace fs = std::filesystem;

// How the two versions call the same things.
struct MemoryFiles {
  const char* limit;
  const char* usage;
  std::string_view statistics_prefix;
};
constexpr MemoryFiles kMemoryV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};
constexpr MemoryFiles kMemoryV2{"memory.max", "memory.current", ""};

template <typename T>
std::optional<T> number_in(const fs::path& file) {
  T value{};
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;  // "max", too
}

template <typename T>
void lower(std::optional<T>* limit, T value) {
  *limit = limit->has_value() ? std::min(**limit, value) : value;
}

// Bytes of files' pages that a group holds.
size_t file_bytes(const fs::path& group, std::string_view prefix) {
  size_t total = 0;
  std::ifstream statistics(group / "memory.stat");
  std::string name;
  size_t bytes = 0;
  while (statistics >> name >> bytes) {
    if (!std::string_view(name).starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    if (rest == "inactive_file" || rest == "active_file") total += bytes;
  }
  return total;
}

void read_memory(const fs::path& group, const MemoryFiles& files, GroupLimits* limits) {
  const auto limit = number_in<size_t>(group / files.limit);
  if (!limit) return;
  lower(&limits->memory_bytes, *limit);
  const size_t usage = number_in<size_t>(group / files.usage).value_or(0);
  const size_t kept = usage - std::min(usage, file_bytes(group, files.statistics_prefix));
  lower(&limits->memory_free_bytes, *limit - std::min(*limit, kept));
}

void lower_cpus(double quota, double period, GroupLimits* limits) {
  if (quota > 0 && period > 0) lower(&limits->cpus, quota / period);  // -1: no limit
}

void read_cpus_v1(const fs::path& group, GroupLimits* limits) {
  lower_cpus(number_in<double>(group / "cpu.cfs_quota_us").value_or(-1),
             number_in<double>(group / "cpu.cfs_period_us").value_or(-1), limits);
}

void read_cpus_v2(const fs::path& group, GroupLimits* limits) {
  double quota = 0;
  double period = 0;
  if (std::ifstream(group / "cpu.max") >> quota >> period) lower_cpus(quota, period, limits);
}

// The group and all above it. Inside a container the path may be that of the host, which is not there: then
// the mount's top is the group itself.
std::vector<fs::path> with_parents(const fs::path& mount, const std::string& path) {
  std::vector<fs::path> groups{mount};
  fs::path group = mount;
  for (const fs::path& part : fs::path(path).relative_path()) groups.push_back(group /= part);
  return groups;
}

bool lists(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

GroupLimits read_group_limits(const std::string& membership, const std::string& root) {
  GroupLimits limits;
  const fs::path top(root);
  std::ifstream file(membership);
  // "ID:CONTROLLERS:PATH"; version 2 lists no controllers.
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const fs::path& group : with_parents(top, path)) {
        read_memory(group, kMemoryV2, &limits);
        read_cpus_v2(group, &limits);
      }
    }
    if (lists(controllers, "memory")) {
      for (const fs::path& group : with_parents(top / "memory", path)) read_memory(group, kMemoryV1, &limits);
    }
    if (lists(controllers, "cpu")) {
      for (const fs::path& group : with_parents(top / "cpu", path)) read_cpus_v1(group, &limits);
    }
  }
  return limits;
}

}  // namespace ete
