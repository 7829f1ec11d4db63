#pragma once

#include <string>

namespace ete::cli {

// Both throw Error(resource_exhausted) beyond 64 MiB and Error(unavailable) when stdin cannot be read.

// The next line of stdin without its newline; false at the end.
bool read_line(std::string& line);
// What is left of stdin.
std::string read_rest();

}  // namespace ete::cli
