#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ete::cli {

// A file to read, and what asked for it.
struct InputFile {
  std::string flag;  // "--grammar", or a command of `ete chat`: "/load"
  std::string path;
  uint64_t most_bytes = UINT64_MAX;  // UINT64_MAX: whoever gets the bytes judges how many there are
  bool may_be_pipe = false;          // else a regular file only
};

// Reads such a file once, from its beginning. Each throws Error naming flag, file and what would be accepted:
// not_found when it cannot be opened, invalid_argument when it is of another kind or larger, unavailable when
// it cannot be read.
class FileReader {
 public:
  explicit FileReader(InputFile file);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  // The next bytes, as many as `out` holds unless the file ends before; 0 at its end.
  size_t read(std::span<char> out);

 private:
  [[noreturn]] void refuse_size(const std::string& found) const;

  const InputFile file_;
  int fd_ = -1;
  uint64_t bytes_ = 0;  // that were read
};

// All of it. Throws as FileReader does.
std::string read_file(const InputFile& file);

}  // namespace ete::cli
