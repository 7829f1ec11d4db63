#include "clients/cli/file_input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr size_t kPartBytes = size_t{1} << 16;

std::string name_of(const InputFile& file) { return file.flag + " " + file.path; }

[[noreturn]] void fail(const InputFile& file, ErrorCode code, int error) {
  throw Error(code, name_of(file) + ": cannot be read: " + std::strerror(error));
}

std::string limit_of(const InputFile& file) {
  if (file.most_bytes == UINT64_MAX) return "";
  return " of at most " + std::to_string(file.most_bytes) + " bytes (" +
         std::to_string(file.most_bytes >> 20) + " MiB)";
}

std::string accepted(const InputFile& file) {
  return std::string("; accepted: a regular file") + (file.may_be_pipe ? " or a pipe" : "") + limit_of(file);
}

}  // namespace

FileReader::FileReader(InputFile file) : file_(std::move(file)) {
  struct stat info {};
  // Before it is opened: that would wait for whoever writes a pipe.
  if (stat(file_.path.c_str(), &info) != 0) fail(file_, ErrorCode::not_found, errno);
  if (!S_ISREG(info.st_mode) && !(file_.may_be_pipe && S_ISFIFO(info.st_mode))) {
    throw Error(ErrorCode::invalid_argument, name_of(file_) + ": another kind of file" + accepted(file_));
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (S_ISREG(info.st_mode) && bytes > file_.most_bytes)
    refuse_size(std::to_string(bytes) + " bytes are not accepted");
  fd_ = open(file_.path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail(file_, ErrorCode::not_found, errno);
}

FileReader::~FileReader() {
  if (fd_ >= 0) close(fd_);
}

size_t FileReader::read(std::span<char> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t got = ::read(fd_, out.data() + done, out.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(file_, ErrorCode::unavailable, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
    bytes_ += static_cast<uint64_t>(got);
    if (bytes_ > file_.most_bytes) refuse_size("more bytes than are accepted");
  }
  return done;
}

void FileReader::refuse_size(const std::string& found) const {
  throw Error(ErrorCode::invalid_argument, name_of(file_) + ": " + found + accepted(file_));
}

std::string read_file(const InputFile& file) {
  FileReader reader(file);
  std::string text;
  std::vector<char> part(kPartBytes);
  while (const size_t bytes = reader.read(part)) text.append(part.data(), bytes);
  return text;
}

}  // namespace ete::cli
