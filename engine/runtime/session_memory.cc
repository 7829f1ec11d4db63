#include "engine/runtime/session_memory.h"

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/runtime/byte_text.h"
#include "engine/runtime/planner.h"
#include "engine/state/recurrent_store.h"

namespace ete {

namespace {

constexpr int64_t kPlannedDrafts = 8;  // of a session
constexpr uint64_t kMaxKvBytes = uint64_t{1} << 60;

void measure_kv(const ModelConfig& config, const ParsedOptions& options, int64_t context,
                SessionMemory& memory) {
  const auto pages = static_cast<uint64_t>((context + kKvTile - 1) / kKvTile);
  const auto sessions = static_cast<uint64_t>(options.raw.max_sessions);
  const bool fits = !__builtin_mul_overflow(kv_layout(config, options.kv_type).page_bytes(),
                                            static_cast<uint64_t>(config.kv_layers()), &memory.kv_page) &&
                    !__builtin_mul_overflow(pages, memory.kv_page, &memory.kv_session) &&
                    !__builtin_mul_overflow(memory.kv_session, sessions, &memory.kv_all) &&
                    memory.kv_all <= kMaxKvBytes;
  if (fits) return;
  const uint64_t positions =
      kMaxKvBytes / sessions / std::max<uint64_t>(memory.kv_page, 1) * static_cast<uint64_t>(kKvTile);
  throw Error(ErrorCode::resource_exhausted,
              "--context, --max-sessions: " + std::to_string(sessions) + " sessions of " +
                  std::to_string(context) + " positions need more KV cache than the " +
                  byte_text(kMaxKvBytes) + " that any machine could have: --context " +
                  std::to_string(positions) + " would be the most to plan with");
}

// Room for more drafts is not planned: a session that sends more gets it while there is some.
void measure_states(const ModelConfig& config, const ParsedOptions& options, SessionMemory& memory) {
  const DeltaNetShape& shape = config.delta_net;
  if (config.linear_layers() == 0) return;
  const auto layers = static_cast<uint64_t>(config.linear_layers());
  memory.state_session = layers * RecurrentStore::layer_bytes(shape);
  const uint64_t drafts =
      layers * static_cast<uint64_t>(kPlannedDrafts * shape.input_width()) * sizeof(float);
  memory.states_all = (memory.state_session + drafts) * static_cast<uint64_t>(options.raw.max_sessions);
}

}  // namespace

SessionMemory session_memory(const ModelConfig& config, const ParsedOptions& options, int64_t context) {
  SessionMemory memory;
  measure_kv(config, options, context, memory);
  measure_states(config, options, memory);
  return memory;
}

TiledKvSizes kv_window(const ModelConfig& config, const ParsedOptions& options, const SessionMemory& memory,
                       int64_t rows) {
  const KvLayout layout = kv_layout(config, options.kv_type);
  const auto pages = static_cast<int64_t>(memory.kv_all / memory.kv_page);  // of all sessions
  return {.layout = layout,
          .heads = config.num_attention_heads,
          .rows = rows,
          .half_pages = std::min(TiledKv::half_pages_for(layout), pages)};
}

StreamedRecurrenceSizes state_window(const ModelConfig& config, const ParsedOptions& options) {
  const DeltaNetShape& shape = config.delta_net;
  return {
      .shape = shape,
      .draft_rows = kMaxDrafts,
      .half_sessions = StreamedRecurrence::half_sessions_for(shape, kMaxDrafts, options.raw.max_sessions)};
}

StreamedRecurrenceSizes widened(StreamedRecurrenceSizes window, int64_t sessions, uint64_t bytes) {
  const int64_t least = window.half_sessions;
  window.half_sessions = 1;
  const auto fit = static_cast<int64_t>(bytes / StreamedRecurrence::arena_bytes(window));
  window.half_sessions = std::max(least, std::min(fit, sessions));
  return window;
}

}  // namespace ete
