#pragma once

#include <cstddef>

namespace ete {

// Plain memory of the process in pages of its own, zero, huge ones where the kernel has them: the way of the
// processor to them is shorter, and so is that of whoever locks them. Touched first by whoever writes them.
// Null, and errno says why, when there is no room. Any thread.
std::byte* map_host_pages(size_t bytes);
void unmap_host_pages(std::byte* data, size_t bytes);  // the same bytes

}  // namespace ete
