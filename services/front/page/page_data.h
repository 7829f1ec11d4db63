#pragma once

#include <span>
#include <string_view>

namespace ete::front {

struct PageData {
  std::string_view name;  // "page.css"
  std::span<const unsigned char> bytes;
};

// The files of the page that a browser asks for, as they are in this folder. They live as long as the
// process.
std::span<const PageData> page_data();

}  // namespace ete::front
