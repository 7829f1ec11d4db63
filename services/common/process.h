#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace ete::service {

// SIGTERM comes when the parent dies, or the thread of it that started this process. Call from the main
// thread; `parent` is what the parent calls itself: by the time that its child can ask, it may have died.
// Throws std::runtime_error when the parent is already gone.
void exit_with_parent(pid_t parent);

// Lets the process have as many files and sockets open as the hard limit says: each client takes one. Where
// the system refuses, the limit stays. The limit as it is then.
uint64_t raise_open_files();

// Bytes of RAM that the process occupies; 0 when /proc cannot be read.
uint64_t resident_set_bytes();

// 16 random bytes in hexadecimal.
std::string random_id();

}  // namespace ete::service
