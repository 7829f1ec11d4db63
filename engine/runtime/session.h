#pragma once

#include <cstdint>

#include "engine/runtime/engine.h"

namespace ete {

// What a session is doing. Finished sessions are forgotten at once, so no live one is in that state for
// longer than a call.
enum class SessionState : uint8_t {
  waiting,         // no place among max_sessions yet
  prefill,         // rows of kind prefill are due
  ready,           // rows of kind decode are due
  awaiting_token,  // nothing is due: the client's turn
  finished,
};

// A session as the scheduler sees it: plain numbers.
struct Session {
  SessionId id = 0;
  SessionState state = SessionState::awaiting_token;
  int64_t length = 0;        // positions computed
  int64_t prefill_rows = 0;  // still due; they come before the decode rows
  int64_t decode_rows = 0;   // still due, all in one pass
  int priority = 0;          // the lower goes first
  int64_t passed_over = 0;   // how often others went first since it did
  int64_t decoded_at = -1;   // number of the last pass with decode rows of it, or that ended its prompt

  // Priority and patience in one: nobody waits for ever.
  int64_t urgency() const { return priority - passed_over / kPatience; }
  static constexpr int64_t kPatience = 4;
};

}  // namespace ete
