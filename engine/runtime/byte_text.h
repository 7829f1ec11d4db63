#pragma once

#include <cstdint>
#include <string>

namespace ete {

// "512 B", "1.50 KiB", "217.98 MiB": for messages and plans.
std::string byte_text(uint64_t bytes);

}  // namespace ete
