#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ete/v1/generation.grpc.pb.h"

namespace ete::cli {

// A conversation in a file, as Generation.Snapshot gives it (`ete run --session FILE`). Each call has a
// context of the caller's, who may cancel it. A link stays one: its target is what is read and replaced.

// Sends the file to the server. None when there is no such file. Throws Error naming the file: it cannot be
// read, or the server refuses it.
std::optional<v1::RestoreReply> restore_session(v1::Generation::Stub& stub, grpc::ClientContext& context,
                                                const std::string& path);

// Writes what the server has of these ids. The file is replaced as a whole or stays as it was. Throws Error
// naming the file.
void save_session(v1::Generation::Stub& stub, grpc::ClientContext& context, const std::string& path,
                  const v1::SnapshotRequest& request);

// Throws Error when a file could not be written there: before anything is computed for it.
void check_session_path(const std::string& path);

}  // namespace ete::cli
