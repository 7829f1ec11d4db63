#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "engine/runtime/engine.h"
#include "ete/v1/engine.pb.h"

// Between protobuf messages and the engine's types: checks what a client sent, copies, computes nothing.

namespace ete::worker {

// What requests are checked against.
struct ModelLimits {
  int64_t vocab_size = 0;
  int64_t context = 0;  // positions a session
};

// The most that one reply may take; a request that asks for more is refused.
constexpr uint64_t kMaxReplyBytes = uint64_t{64} << 20;

// Throw Error(invalid_argument), or resource_exhausted past the context, naming the field as engine.proto
// does.
OpenRequest to_open_request(const v1::Open& open, const ModelLimits& limits);
StepRequest to_step_request(const v1::Step& step, const ModelLimits& limits);
void check_salt(const std::string& salt, const std::string& field);

struct FullRow {
  int64_t position = 0;
  std::vector<float> logits;  // [vocab]
};

v1::SessionReply to_reply(const StepResult& result);
v1::SessionReply to_reply(const FullRow& row);
v1::SessionReply to_reply(const StepProgress& progress);

}  // namespace ete::worker
