#include "clients/cli/private_directory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "engine/base/error.h"

namespace ete::cli {
namespace {

namespace fs = std::filesystem;

// Only locked directories have this name: a new one is locked before it gets it.
constexpr const char* kPrefix = "ete-private-";
constexpr const char* kNewPrefix = "ete-new-";
constexpr size_t kSuffixLength = 6;  // of mkdtemp
// sockaddr_un holds 107 characters, of which a socket's own name needs some.
constexpr size_t kMaxBase = 64;

std::string base_directory() {
  std::error_code error;
  const std::string base = fs::temp_directory_path(error).string();
  return error || base.size() > kMaxBase ? "/tmp" : base;
}

// Open and locked, or -1 where it is no directory of ours or somebody holds it.
int lock_directory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return -1;
  struct stat info;
  if (fstat(fd, &info) == 0 && info.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  close(fd);
  return -1;
}

// One that never got its name, unless it may yet: that takes no time. Not locked here, as its owner, who
// would not wait, may be about to.
void remove_old_new(const std::string& path) {
  constexpr time_t kOldSeconds = 60;
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return;
  if (time(nullptr) - info.st_mtime > kOldSeconds) rmdir(path.c_str());
}

void remove_abandoned(const std::string& base) {
  std::error_code error;
  for (fs::directory_iterator entry(base, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(kNewPrefix)) remove_old_new(entry->path().string());
    if (!name.starts_with(kPrefix)) continue;
    const int fd = lock_directory(entry->path().string());
    if (fd < 0) continue;
    std::error_code ignored;  // another one may be removing the same, or it is not ours to remove
    fs::remove_all(entry->path(), ignored);
    close(fd);
  }
}

}  // namespace

PrivateDirectory::PrivateDirectory() {
  const std::string base = base_directory();
  remove_abandoned(base);
  std::string fresh = base + "/" + kNewPrefix + std::string(kSuffixLength, 'X');
  if (mkdtemp(fresh.data()) == nullptr) {
    throw Error(ErrorCode::unavailable,
                "cannot make a directory for temporary files in " + base + ": " + strerror(errno));
  }
  lock_ = lock_directory(fresh);
  path_ = base + "/" + kPrefix + fresh.substr(fresh.size() - kSuffixLength);
  if (lock_ < 0 || rename(fresh.c_str(), path_.c_str()) != 0) {
    const std::string reason = strerror(errno);
    if (lock_ >= 0) close(lock_);
    rmdir(fresh.c_str());
    throw Error(ErrorCode::unavailable, "cannot set up the directory " + path_ + ": " + reason);
  }
}

PrivateDirectory::~PrivateDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  close(lock_);
}

}  // namespace ete::cli
