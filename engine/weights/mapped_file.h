#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ete {

// A regular, non-empty file, mapped read-only for as long as the object lives. Its bytes must not be changed
// by others meanwhile: a file cut short under a mapping raises SIGBUS, as for every program that maps files.
class MappedFile {
 public:
  // Error(not_found) when there is no such file, Error(invalid_argument) when it cannot be read or is not a
  // regular file, Error(corrupt) when it is empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Drops the whole pages inside [data, data + bytes) from this process; a later read of a file mapping brings
// them back, a later read of an anonymous mapping sees zeros.
void drop_pages(const std::byte* data, size_t bytes);

// False only where nothing of this name is there; a file that cannot be examined fails when it is opened.
bool file_exists(const std::string& path);

// The whole file, at most max_bytes. Errors as MappedFile's, but an empty file is an empty string, and
// Error(invalid_argument) when it is larger.
std::string read_file(const std::string& path, size_t max_bytes);

}  // namespace ete
