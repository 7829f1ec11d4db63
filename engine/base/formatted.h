#pragma once

#include <cstdio>
#include <string>

namespace ete {

// As printf; what is longer than 383 bytes is cut. `form` is a literal, its values numbers and C strings.
template <typename... Values>
std::string formatted(const char* form, Values... values) {
  char text[384];
  std::snprintf(text, sizeof text, form, values...);
  return text;
}

}  // namespace ete
