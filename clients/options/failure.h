#pragma once

#include <array>
#include <exception>
#include <string>

// How the programs of the project end when something fails that nobody expected, memory that runs out above
// all. Knows nothing of what they do.

namespace ete {

// "the process has 143 MiB of the 146 MiB of address space that its limit permits (ulimit -v)", or, without
// such a limit, what it has and what RAM is left. Ends with a 0. Allocates nothing.
using MemoryText = std::array<char, 192>;
MemoryText memory_text() noexcept;

// One line of what ended `doing`, as "loading a.gguf"; empty: the program's name says it. Of memory that ran
// out, or threads that could not be started, it tells also how much there is; of anything else what the
// exception tells.
std::string failure_text(const std::exception& error, const std::string& doing);

// From now on an exception that nobody catches ends the process with one line on stderr, "<program>: ...":
// with exit code 1 when it is as above, by SIGABRT, for a core to look at, when it is another. Call once,
// from the main thread.
void tell_uncaught_exceptions();

}  // namespace ete
