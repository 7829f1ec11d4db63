#include "clients/options/failure.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

namespace ete {
namespace {

// What a file of /proc begins with; empty when it cannot be read.
std::array<char, 512> beginning_of(const char* path) noexcept {
  std::array<char, 512> text{};
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  const ssize_t bytes = read(fd, text.data(), text.size() - 1);
  close(fd);
  if (bytes < 0) text[0] = '\0';
  return text;
}

unsigned long long address_space_mib() noexcept {
  const auto statm = beginning_of("/proc/self/statm");
  const auto page_bytes = static_cast<unsigned long long>(sysconf(_SC_PAGESIZE));
  return (std::strtoull(statm.data(), nullptr, 10) * page_bytes) >> 20;
}

unsigned long long ram_left_mib() noexcept {
  constexpr const char* kField = "MemAvailable:";
  const auto meminfo = beginning_of("/proc/meminfo");
  const char* field = std::strstr(meminfo.data(), kField);
  return field == nullptr ? 0 : std::strtoull(field + std::strlen(kField), nullptr, 10) >> 10;
}

bool lacks_threads(const std::error_code& code) noexcept {
  return code == std::errc::resource_unavailable_try_again || code == std::errc::not_enough_memory;
}

// One write, of what fits, from the stack: there may be no memory for more.
void print(const char* what, const char* details) noexcept {
  std::array<char, 1024> line{};
  const int bytes =
      std::snprintf(line.data(), line.size(), "%s: %s: %s\n", program_invocation_short_name, what, details);
  const size_t size = std::min(static_cast<size_t>(std::max(bytes, 0)), line.size() - 1);
  if (write(STDERR_FILENO, line.data(), size) < 0) return;  // there is nobody else to tell
}

[[noreturn]] void on_terminate() noexcept {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
    print("internal error", "the program ended itself");
  } catch (const std::bad_alloc&) {
    print("out of memory", memory_text().data());
    std::_Exit(EXIT_FAILURE);
  } catch (const std::system_error& error) {
    if (lacks_threads(error.code())) {
      print("no thread can be started", memory_text().data());
      std::_Exit(EXIT_FAILURE);
    }
    print("internal error", error.what());
  } catch (const std::exception& error) {
    print("internal error", error.what());
  } catch (...) {
    print("internal error", "an exception of an unknown type");
  }
  std::abort();
}

}  // namespace

MemoryText memory_text() noexcept {
  MemoryText text{};
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    std::snprintf(
        text.data(), text.size(),
        "the process has %llu MiB of the %llu MiB of address space that its limit permits (ulimit -v)",
        address_space_mib(), static_cast<unsigned long long>(limit.rlim_cur) >> 20);
  } else {
    std::snprintf(text.data(), text.size(),
                  "the process has %llu MiB of address space, and %llu MiB of RAM are left",
                  address_space_mib(), ram_left_mib());
  }
  return text;
}

std::string failure_text(const std::exception& error, const std::string& doing) {
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  std::string what;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    what = "out of memory";
  } else if (system != nullptr && lacks_threads(system->code())) {
    what = "no thread can be started";
  } else {
    return error.what();
  }
  if (!doing.empty()) what += " while " + doing;
  return what + ": " + memory_text().data();
}

void tell_uncaught_exceptions() { std::set_terminate(on_terminate); }

}  // namespace ete
