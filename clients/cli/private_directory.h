#pragma once

#include <string>

namespace ete::cli {

// A new directory below the system's one for temporary files, for sockets and logs of child processes: mode
// 0700, removed with everything in it when its owner goes. What an owner that was killed left behind, the
// next one removes: an owner holds a lock on its directory as long as it lives, so only directories without a
// living owner are touched.
class PrivateDirectory {
 public:
  // Throws Error(unavailable) naming the directory.
  PrivateDirectory();
  ~PrivateDirectory();
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
  int lock_ = -1;  // the directory itself, open and locked
};

}  // namespace ete::cli
