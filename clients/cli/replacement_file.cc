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
namespace {

[[noreturn]] void fail_at(const std::string& name, const std::string& what, int error) {
  throw Error(ErrorCode::unavailable, name + ": " + what + ": " + std::strerror(error));
}

}  // namespace

std::string ReplacementFile::target_of(const std::string& flag, const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  const std::string name = flag + " " + path;
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular) {
    throw Error(ErrorCode::invalid_argument, name + ": not a regular file");
  }
  std::filesystem::path target = path;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == kMostLinks) fail_at(name, "cannot follow it", ELOOP);
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (error) fail_at(name, "cannot follow it", error.value());
  }
  return target;
}

ReplacementFile::ReplacementFile(const std::string& flag, const std::string& path)
    : name_(flag + " " + path), path_(target_of(flag, path)), temporary_(path_ + ".XXXXXX") {
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

void ReplacementFile::fail(const std::string& what, int error) const { fail_at(name_, what, error); }

}  // namespace ete::cli
