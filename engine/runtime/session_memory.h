#pragma once

#include <cstdint>

#include "engine/models/model.h"
#include "engine/runtime/options.h"
#include "engine/state/streamed_recurrence.h"
#include "engine/state/tiled_kv.h"

namespace ete {

// Bytes that sessions need for what they remember, wherever it lies.
struct SessionMemory {
  uint64_t kv_page = 0;     // 512 positions of all layers
  uint64_t kv_session = 0;  // of as many positions as a session may have
  uint64_t kv_all = 0;      // of all sessions
  uint64_t state_session = 0;
  uint64_t states_all = 0;  // of all sessions, with room for some drafts
};

// `context` is in positions. Error(resource_exhausted) with the context that would fit when it is more than
// any machine could have: sums of these figures do not wrap around.
SessionMemory session_memory(const ModelConfig& config, const ParsedOptions& options, int64_t context);

// The windows through which a device with memory of its own reads what lies on the host: a KV cache of which
// a pass has at most `rows` query rows, and recurrent states.
TiledKvSizes kv_window(const ModelConfig& config, const ParsedOptions& options, const SessionMemory& memory,
                       int64_t rows);
StreamedRecurrenceSizes state_window(const ModelConfig& config, const ParsedOptions& options);
// That window with halves for as many of `sessions` sessions as `bytes` of both hold, no fewer than it had. A
// half for all of them takes in the next layer's states while this one's are computed; where several batches
// take turns, each waits for the link, which serves the copies of layers and states in turns of milliseconds.
StreamedRecurrenceSizes widened(StreamedRecurrenceSizes window, int64_t sessions, uint64_t bytes);

}  // namespace ete
