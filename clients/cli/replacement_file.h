#pragma once

#include <string>

namespace ete::cli {

// A file that takes the place of `path`, or of what that links to, whole or not at all: what is written lies
// beside it until place(), and goes if that is not reached. Each throws Error naming flag and file; one that
// is there and is no regular file is refused, for a device would be gone. Only the owner may read it, unless
// keep_mode() is called.
class ReplacementFile {
 public:
  // flag: what asked for it: "--session", or a command of `ete chat`: "/save".
  ReplacementFile(const std::string& flag, const std::string& path);
  ~ReplacementFile();
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  // What would be replaced, behind all links. There need be nothing. Throws as the constructor does.
  static std::string target_of(const std::string& flag, const std::string& path);

  const std::string& path() const { return path_; }        // target_of() it
  const std::string& draft() const { return temporary_; }  // where it lies until place()
  void write(const std::string& bytes);
  void keep_mode();  // that of what it replaces, if there is any
  void place();

 private:
  [[noreturn]] void fail(const std::string& what, int error) const;

  const std::string name_;
  const std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool placed_ = false;
};

}  // namespace ete::cli
