#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/models/model_config.h"
#include "engine/ops/ops.h"
#include "engine/runtime/session_image.h"

// The engine's door: ids and positions in, logits out. No gRPC, no text.

namespace ete {

// The engine options of interface.md, parsed and typed. -1 means auto unless said otherwise.
struct EngineOptions {
  std::string model;
  std::string device = "auto";
  std::string resident_layers = "auto";  // "auto" or an integer; -1 all, 0 none
  int slots = -1;
  std::string math;  // "" (device's default), "exact", "fast"
  std::string kernels = "auto";
  uint64_t link_limit = 0;  // bytes a second; 0: none
  std::string home = "pinned";
  uint64_t vram_budget = 0;  // bytes; 0: what is free, less 10 %
  std::string kv = "auto";
  std::string kv_type = "f16";
  std::string vocab = "auto";
  std::string weights = "auto";
  int max_sessions = 16;
  int max_queued = -1;             // sessions that may wait for a place; -1: 4 for each that may run
  int64_t max_queued_tokens = -1;  // of prompts, not computed yet, of all sessions; -1: auto
  int64_t context = -1;            // positions a session; -1: the model's
  int64_t chunk = -1;              // prompt rows a pass, rounded up to a multiple of 64
  double host_share = 0;           // 0..1; -1: auto
  int threads = 0;                 // 0: the machine's cores
  int64_t prefix_cache = -1;       // bytes of cached prefixes at most; -1: auto, 0: nothing is cached
  std::vector<std::string> accept_unknown;
};

// What was decided, for people and scripts; to_json is what `ete inspect --json` and GetStatus show.
struct Plan {
  std::string device_name;
  std::string kernels;  // Ops::describe()
  int64_t layers = 0;
  int64_t resident_layers = 0;
  int slots = 0;
  int64_t context = 0;
  int64_t chunk = 0;
  int max_sessions = 0;
  int max_queued = 0;
  int64_t max_queued_tokens = 0;
  int threads = 0;
  std::string kv_placement;  // "device" | "host"
  std::string kv_type;
  std::string vocab_placement;
  uint64_t home_bytes = 0;  // weights in host RAM: all, or with --home mmap what is no layer
  uint64_t resident_bytes = 0;
  double host_share = 0;  // of the rows of each streamed matrix; part of the numeric path on a GPU
  uint64_t streamed_bytes_per_pass = 0;  // of decode rows alone
  uint64_t prompt_streamed_bytes_per_pass =
      0;                             // with rows of prompts, which a GPU computes from whole layers
  uint64_t host_bytes_per_pass = 0;  // of the layers, read at home by host threads (--host-share)
  uint64_t lm_head_bytes = 0;        // read once in a pass whose rows want logits
  uint64_t weights_per_row = 0;      // of the layers' matrices: multiply-adds a row
  uint64_t kv_bytes_per_token = 0;
  uint64_t kv_bytes_per_session = 0;  // at full context
  std::string state_placement;        // "device" | "host"; "" for a model without recurrent state
  uint64_t state_bytes_per_session = 0;
  uint64_t prefix_cache_bytes = 0;  // of cached prefixes at most; 0: nothing is cached
  uint64_t activation_bytes = 0;
  uint64_t peak_device_bytes = 0;
  uint64_t peak_host_bytes = 0;
  std::vector<std::pair<std::string, uint64_t>> bytes_by_format;  // "w4_g32m" -> bytes
  std::vector<std::string> notes;                                 // choices worth a sentence
  std::string to_json() const;
  std::string to_text() const;
};

using SessionId = uint64_t;  // never reused within a process

// Of an OpenRequest; the lower goes first.
constexpr int kBestPriority = -10;
constexpr int kLastPriority = 10;

enum class WantedRows : uint8_t { none, last, all };

struct OpenRequest {
  std::string request_id;
  std::vector<int32_t> prompt_ids;  // may be empty: then the first Step is at position 0
  // Prefixes are shared among requests of the same salt only. Positions of the prompt that were found in the
  // cache are not computed again. Those whose rows are wanted always are, but for the last one of what
  // restore() brought with its logits. A fork looks nothing up and keeps the salt of the session that it
  // continues.
  std::string cache_salt;
  // Neither looked up nor kept in the prefix cache; a fork takes this over.
  bool skip_prefix_cache = false;
  int priority = 0;  // kBestPriority to kLastPriority
  // 0: none. Otherwise prompt_ids continues a copy of that session at fork_position. Of a model with
  // recurrent state the session must be idle, and fork_position is one at which it could be truncated.
  SessionId fork_of = 0;
  int64_t fork_position = -1;  // length to keep of the forked session; -1: all of it
  WantedRows rows = WantedRows::last;
  LogitsWanted wanted;
};

struct StepRequest {
  // Absolute index of ids[0]; below the length: truncate there first. A model with recurrent state takes back
  // drafts only, or everything (position 0).
  int64_t position = 0;
  std::vector<int32_t>
      ids;  // committed ids, then n_draft drafts; one committed id: decode rows, more: prefill rows
  int64_t n_draft = 0;
  WantedRows rows = WantedRows::last;  // last: the last committed row and every draft row (n_draft + 1 rows)
  LogitsWanted wanted;
};

struct StepTimings {
  double queued_ms = 0;   // from submission to the first pass with its rows
  double compute_ms = 0;  // passes that carried its rows
  int64_t passes = 0;
  int64_t rows = 0;
};

struct StepResult {
  int64_t position = 0;  // absolute index of the first row in `rows`
  std::vector<LogitsRow> rows;
  int64_t length = 0;         // positions that the session now holds
  int64_t reused_tokens = 0;  // positions of the prompt that came from the prefix cache
  StepTimings timings;
};

// Called on the engine thread: must only hand over and return. An error that passes with time is an
// Overloaded (overloaded.h). After on_error or on_closed nothing more comes.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  virtual void on_result(StepResult result) = 0;
  virtual void on_error(const Error& error) = 0;
};

struct EngineStatus {
  int sessions = 0;
  int queued = 0;
  int64_t queued_tokens = 0;     // of prompts, not computed yet
  double retry_after_ms = 0;     // when a session that was refused now should come again
  uint64_t passes = 0;           // that are done
  uint64_t repeated_passes = 0;  // of them: whose layers were submitted as recorded before
  uint64_t decode_rows = 0;
  uint64_t prefill_rows = 0;
  uint64_t kv_bytes = 0;      // host and device bytes now held by sessions, recurrent states too
  uint64_t prefix_bytes = 0;  // of cached prefixes, what they share with sessions included
  uint64_t prefix_lookups = 0;
  uint64_t prefix_hits = 0;
  uint64_t reused_tokens = 0;  // by all sessions so far
  uint64_t preempted = 0;      // times that a session gave its memory up to others
  double last_pass_ms = 0;
  double pass_ms = 0;          // of all passes
  int64_t last_pass_rows = 0;  // its batch
  uint64_t link_bytes = 0;     // of layers, streamed to the device
  // Of the time of a pass, that in which no layer was on its way to the device; of one pass in 64, the last
  // of them. Absent: no layer is streamed, or none was watched yet.
  std::optional<double> link_idle_share;
  uint64_t device_bytes = 0;  // allocated
};

// Fraction in [0, 1] and what is being done. Called on the loading thread.
using LoadProgress = std::function<void(double fraction, const std::string& what)>;

// Thread-safe unless a method says otherwise. One engine thread inside owns scheduler and Device.
class Engine {
 public:
  // Opens, gates, plans, loads, runs one warm-up pass. Throws Error.
  static std::unique_ptr<Engine> load(const EngineOptions& options, const LoadProgress& progress = {});
  // Plans without loading weights: what `ete inspect` prints.
  static Plan plan_only(const EngineOptions& options, ModelFiles* files_out = nullptr);

  virtual ~Engine() = default;  // ends every session with Error(cancelled)

  virtual const Plan& plan() const = 0;
  virtual const ModelConfig& config() const = 0;
  virtual const ModelFiles& files() const = 0;
  virtual EngineStatus status() const = 0;
  // Set once the device can no longer be used (I8): every session has failed with it, and the process should
  // end.
  virtual std::optional<Error> fatal_error() const { return std::nullopt; }

  // Queues the session; results and errors go to the listener, validation errors too (asynchronously). The
  // listener is kept until close() has taken effect. When prompt_ids is empty there is no result for the
  // Open.
  virtual SessionId open(OpenRequest request, std::shared_ptr<SessionListener> listener) = 0;
  // One outstanding Step a session: a second is an error that ends the session.
  virtual void step(SessionId session, StepRequest request) = 0;
  // The full row of logits of the newest step at an absolute position (one of its result's rows). done is
  // called on the engine thread with the row [vocab], or with an error (row empty).
  virtual void fetch_row(SessionId session, int64_t position,
                         std::function<void(std::vector<float> row, const Error* error)> done) = 0;
  // Ends a session at the next layer boundary, freeing its KV; unknown ids are ignored (idempotent). The
  // listener gets on_error(cancelled) unless `quiet`.
  virtual void close(SessionId session, bool quiet = true) = 0;

  virtual SessionImageSizes image_sizes() const = 0;
  // What was computed of these ids under this salt, by sessions that have ended or wait for their next step;
  // the image's positions may be fewer than the ids, or none. Where only a few are lacking at the end, as
  // when one was drawn and the session ended, a session of its own computes them, if there is a place for
  // one. done is called on the engine thread, with Error(failed_precondition) where nothing is cached
  // (--prefix-cache 0).
  virtual void snapshot(std::string salt, std::vector<int32_t> ids,
                        std::function<void(SessionImage image, const Error* error)> done) = 0;
  // Caches an image under this salt, for prompts that begin with its ids; one that is just these takes no
  // pass where the image has its logits. An image is as good as whoever made it: its salt must be one that
  // nobody else's prompts have. done gets the positions that found room.
  virtual void restore(std::string salt, SessionImage image,
                       std::function<void(int64_t positions, const Error* error)> done) = 0;
};

}  // namespace ete
