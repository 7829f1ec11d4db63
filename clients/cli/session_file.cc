#include "clients/cli/session_file.h"

#include <filesystem>
#include <vector>

#include "clients/cli/file_input.h"
#include "clients/cli/replacement_file.h"
#include "clients/cli/server_client.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr const char* kFlag = "--session";
constexpr size_t kPartBytes = size_t{1} << 20;

// The server's messages begin with "session: ", maybe behind the worker's address.
Error refused(const std::string& path, const grpc::Status& status) {
  return Error(ErrorCode::unavailable, std::string(kFlag) + " " + path + ": " + describe(status));
}

}  // namespace

void check_session_path(const std::string& path) { const ReplacementFile trial(kFlag, path); }

std::optional<v1::RestoreReply> restore_session(v1::Generation::Stub& stub, grpc::ClientContext& context,
                                                const std::string& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  FileReader file({.flag = kFlag, .path = path});
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
  ReplacementFile file(kFlag, path);
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
