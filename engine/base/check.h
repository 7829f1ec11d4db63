#pragma once

#include "engine/base/error.h"

namespace ete {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace ete

// An invariant of ours, always on: throws Error(internal) naming the place. Never for input from outside,
// which deserves an Error that names the field. The second argument is evaluated only on failure.
#define CHECK(condition, detail)                                                   \
  do {                                                                             \
    if (!(condition)) ::ete::check_failed(__FILE__, __LINE__, #condition, detail); \
  } while (false)
