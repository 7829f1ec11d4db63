#include <string>

#include "engine/base/check.h"
#include "engine/ops/ops.h"

namespace ete {

namespace {

struct FamilyName {
  KernelFamily family;
  std::string_view name;
};
constexpr FamilyName kFamilies[] = {
    {KernelFamily::automatic, "auto"}, {KernelFamily::plain, "plain"}, {KernelFamily::avx2, "avx2"},
    {KernelFamily::avx512, "avx512"},  {KernelFamily::vnni, "vnni"},   {KernelFamily::amx, "amx"},
    {KernelFamily::dp4a, "dp4a"},      {KernelFamily::mma, "mma"},     {KernelFamily::wgmma, "wgmma"},
};

}  // namespace

std::string_view name_of(KernelFamily family) {
  for (const FamilyName& entry : kFamilies) {
    if (entry.family == family) return entry.name;
  }
  check_failed(__FILE__, __LINE__, "KernelFamily", "unknown");
}

KernelFamily kernel_family_from(std::string_view name) {
  std::string names;
  for (const FamilyName& entry : kFamilies) {
    if (entry.name == name) return entry.family;
    names += (names.empty() ? "" : ", ") + std::string(entry.name);
  }
  throw Error(ErrorCode::invalid_argument, "kernels: '" + std::string(name) + "'; accepted: " + names);
}

}  // namespace ete
