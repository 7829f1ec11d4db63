#include "engine/device/host_pages.h"

#include <sys/mman.h>

namespace ete {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t in_huge_pages(size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

}  // namespace

std::byte* map_host_pages(size_t bytes) {
  void* data = mmap(nullptr, in_huge_pages(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  // Only a hint: a kernel without huge pages serves small ones.
  (void)madvise(data, in_huge_pages(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

void unmap_host_pages(std::byte* data, size_t bytes) { (void)munmap(data, in_huge_pages(bytes)); }

}  // namespace ete
