#include "clients/cli/replacement_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"

namespace ete::cli {

ReplacementFile::ReplacementFile(const std::string& flag, const std::string& path)
    : name_(flag + " " + path) {
  std::error_code ignored;
  const auto kind = std::filesystem::status(path, ignored).type();
  if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular) {
    throw Error(ErrorCode::invalid_argument, name_ + ": not a regular file");
  }
  path_ = target_of(path);
  temporary_ = path_ + ".XXXXXX";
  fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail("cannot write beside it", errno);
}

ReplacementFile::~ReplacementFile() {
  if (fd_ >= 0) close(fd_);
  if (!placed_) unlink(temporary_.c_str());
}

void ReplacementFile::write(const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno != EINTR) fail("cannot write", errno);
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
}

void ReplacementFile::keep_mode() {
  struct stat old {};
  if (stat(path_.c_str(), &old) == 0 && fchmod(fd_, old.st_mode & 0777) != 0)
    fail("cannot set its mode", errno);
}

void ReplacementFile::place() {
  if (fsync(fd_) != 0) fail("cannot write", errno);
  if (rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot replace it", errno);
  placed_ = true;
}

void ReplacementFile::fail(const std::string& what, int error) const {
  throw Error(ErrorCode::unavailable, name_ + ": " + what + ": " + std::strerror(error));
}

// What a link, or a link to one, leads to; the path itself when it is none. There need be nothing.
std::string ReplacementFile::target_of(const std::string& path) const {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == kMostLinks) fail("cannot follow it", ELOOP);
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (error) fail("cannot follow it", error.value());
  }
  return target;
}

}  // namespace ete::cli
