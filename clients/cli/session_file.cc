#include "clients/cli/session_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "clients/cli/file_input.h"
#include "clients/cli/server_client.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what, int error) {
  throw Error(ErrorCode::unavailable, "--session " + path + ": " + what + ": " + std::strerror(error));
}

// The server's messages begin with "session: ", maybe behind the worker's address.
Error refused(const std::string& path, const grpc::Status& status) {
  return Error(ErrorCode::unavailable, "--session " + path + ": " + describe(status));
}

// What a link, or a link to one, leads to; the path itself when it is none. There need be nothing.
std::string target_of(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::filesystem::path target = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(target, error); ++links) {
    if (links == kMostLinks) fail(path, "cannot follow it", ELOOP);
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (error) fail(path, "cannot follow it", error.value());
  }
  return target;
}

// A file beside `path`, or beside what it links to, that takes its place, or goes when it was not to.
class Replacement {
 public:
  explicit Replacement(const std::string& path) : path_(target_of(path)), temporary_(path_ + ".XXXXXX") {
    fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
    if (fd_ < 0) fail(path_, "cannot write beside it", errno);
  }
  ~Replacement() {
    if (fd_ >= 0) close(fd_);
    if (!placed_) unlink(temporary_.c_str());
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void write(const std::string& bytes) {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t wrote = ::write(fd_, bytes.data() + done, bytes.size() - done);
      if (wrote < 0 && errno != EINTR) fail(path_, "cannot write", errno);
      if (wrote > 0) done += static_cast<size_t>(wrote);
    }
  }
  void place() {
    if (fsync(fd_) != 0) fail(path_, "cannot write", errno);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "cannot replace it", errno);
    placed_ = true;
  }

 private:
  const std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool placed_ = false;
};

}  // namespace

void check_session_path(const std::string& path) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular) {
    throw Error(ErrorCode::invalid_argument, "--session " + path + ": not a regular file");
  }
  const Replacement trial(path);
}

std::optional<v1::RestoreReply> restore_session(v1::Generation::Stub& stub, grpc::ClientContext& context,
                                                const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  FileReader file({.flag = "--session", .path = path});
  v1::RestoreReply reply;
  const auto writer = stub.Restore(&context, &reply);
  v1::SessionPart part;
  std::vector<char> bytes(kPartBytes);
  try {
    while (const size_t count = file.read(bytes)) {
      part.set_data(bytes.data(), count);
      if (!writer->Write(part)) break;  // Finish tells why
    }
  } catch (const Error&) {
    context.TryCancel();
    writer->Finish();
    throw;
  }
  writer->WritesDone();
  if (const grpc::Status status = writer->Finish(); !status.ok()) throw refused(path, status);
  return reply;
}

void save_session(v1::Generation::Stub& stub, grpc::ClientContext& context, const std::string& path,
                  const v1::SnapshotRequest& request) {
  Replacement file(path);
  const auto reader = stub.Snapshot(&context, request);
  v1::SessionPart part;
  try {
    while (reader->Read(&part)) file.write(part.data());
  } catch (const Error&) {
    context.TryCancel();
    reader->Finish();
    throw;
  }
  if (const grpc::Status status = reader->Finish(); !status.ok()) throw refused(path, status);
  file.place();
}

}  // namespace ete::cli
