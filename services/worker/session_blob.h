#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "engine/models/model_config.h"
#include "engine/runtime/engine.h"

namespace ete::worker {

// A session as a document, little-endian: the header, ids (int32), keys and values, recurrent state (with
// that of the convolutions), the logits after the last position (float32), then the SHA-256 of all before.
// The header: 8 bytes "ETESESSN", version (uint32), SHA-256 of the model (32 bytes), number of ids,
// positions, bytes of keys and values, of recurrent state, of logits (uint64 each).
constexpr size_t kSessionHeaderBytes = 8 + 4 + 32 + 5 * 8;

// Which sessions a worker can take.
struct SessionFormat {
  std::string model;  // model_digest
  SessionImageSizes sizes;
};

// 32 bytes: architecture and sizes, how the weights are packed and the KV cache's type, and of each tensor
// the name, type, shape and some of its bytes. Anything that changes what a model computes changes it, but
// for edits of single weights that are not among those bytes.
std::string model_digest(const ModelFiles& files, const Plan& plan);

std::string write_session(const SessionImage& image, const SessionFormat& format);

// Of a document whose first kSessionHeaderBytes are these; never more than a session of this model can take.
// Error(invalid_argument) for another program's, version's or model's.
size_t session_bytes(std::string_view header, const SessionFormat& format);

// Any bytes: Error(invalid_argument), or an image that check_session_image takes.
SessionImage read_session(std::string_view document, const SessionFormat& format);

}  // namespace ete::worker
