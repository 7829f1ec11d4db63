#include "engine/weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "engine/base/error.h"

namespace ete {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ >= 0) return;
    const int error = errno;
    throw Error(error == ENOENT || error == ENOTDIR ? ErrorCode::not_found : ErrorCode::invalid_argument,
                path + ": cannot be opened: " + std::strerror(error));
  }
  ~FileDescriptor() { ::close(fd_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }

  size_t regular_size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) {
      throw Error(ErrorCode::invalid_argument, path_ + ": stat failed: " + std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
      throw Error(
          ErrorCode::invalid_argument,
          path_ + (S_ISDIR(status.st_mode) ? ": is a directory, not a file" : ": is not a regular file"));
    }
    return static_cast<size_t>(status.st_size);
  }

 private:
  const std::string& path_;
  int fd_ = -1;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const FileDescriptor file(path_);
  size_ = file.regular_size();
  if (size_ == 0) throw Error(ErrorCode::corrupt, path_ + ": the file is empty");
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    throw Error(ErrorCode::resource_exhausted,
                path_ + ": mapping " + std::to_string(size_) + " bytes failed: " + std::strerror(errno));
  }
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(data_), size_); }

void drop_pages(const std::byte* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  // Advice only: a kernel that declines it keeps the pages, which costs memory and nothing else.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool file_exists(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string read_file(const std::string& path, size_t max_bytes) {
  const FileDescriptor file(path);
  const size_t size = file.regular_size();
  if (size > max_bytes) {
    throw Error(ErrorCode::invalid_argument, path + ": " + std::to_string(size) + " bytes, more than the " +
                                                 std::to_string(max_bytes) + " that are read");
  }
  std::string text(size, '\0');
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::read(file.get(), text.data() + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      throw Error(ErrorCode::corrupt,
                  path + ": read " + std::to_string(done) + " of " + std::to_string(size) +
                      " bytes: " + (n < 0 ? std::strerror(errno) : "the file became shorter"));
    }
    done += static_cast<size_t>(n);
  }
  return text;
}

}  // namespace ete
