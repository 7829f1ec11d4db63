#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/error.h"
#include "engine/device/device.h"
#include "engine/ops/delta_net.h"
#include "engine/ops/packed_matrix.h"

// Every operation of the pass, as one interface that each device implements: ops/cpu/<op>.cc,
// ops/cuda/<op>.cu. Currency: raw pointers in the device's memory, and sizes. Each call enqueues on the
// stream and returns; argument structs are copied, what they point at stays alive until the stream has
// passed. Activations are f32, row-major.
//
// Numeric contract (I3): a row of output depends only on the same row of input and on (weights, math, family,
// kind): never on how many rows share the call. Each output element has one fixed order of reduction per
// (family, kind).

namespace ete {

enum class RowKind : uint8_t {
  decode,   // one committed token of a session and its drafts: latency counts
  prefill,  // rows of a prompt: throughput counts
};

enum class Math : uint8_t {
  exact,  // f32 activations and accumulation, weights as stored
  fast,   // may round activations; the tolerance is stated by Ops::describe()
};

// Kernel families of the CPU, each a fixed numeric path. `automatic` is the best one that this processor
// runs.
enum class KernelFamily : uint8_t { automatic, plain, avx2, avx512, vnni, amx, dp4a, mma, wgmma };

std::string_view name_of(KernelFamily family);
// Error(invalid_argument) listing the names.
KernelFamily kernel_family_from(std::string_view name);

// y = W x (+ bias) (+ y): one of several products that share x.
struct MatmulOutput {
  PackedMatrix w;               // [rows, cols]
  int64_t row_begin = 0;        // computes output rows [row_begin, row_end) of W; a multiple of 16
  int64_t row_end = 0;          // w.rows, or a multiple of 16
  const float* bias = nullptr;  // [w.rows], indexed by absolute row, or null
  float* y = nullptr;           // [m, y_stride]; row r of W goes to column r
  int64_t y_stride = 0;         // elements
  bool add_to_y = false;        // residual: y += instead of y =
};

// One block of Ops::copy_rows: y = x (+ bias) (+ y) over [m, n].
struct RowsCopy {
  const float* x = nullptr;  // [m, x_stride], n columns used
  int64_t x_stride = 0;
  float* y = nullptr;  // [m, y_stride], n columns used; no other block's
  int64_t y_stride = 0;
  int64_t n = 0;
  const float* bias = nullptr;  // [n] or null
  bool add_to_y = false;
};

// How a KV page of one layer lies in memory: K [kv_heads, kKvTile, head_dim], then V the same. A page holds
// kKvTile positions; page p holds positions [p * kKvTile, (p + 1) * kKvTile).
constexpr int64_t kKvTile = 512;
constexpr int64_t kMaxHeadDim = 256;
struct KvLayout {
  DType type = DType::f16;  // f32, f16 or bf16; rounded to nearest even on store
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // multiple of 2, 2 to kMaxHeadDim
  size_t page_bytes() const { return 2 * static_cast<size_t>(kv_heads * kKvTile * head_dim) * size_of(type); }
};

// Rows of one session in this pass, consecutive in the batch and in the session.
struct KvSegment {
  int64_t row_begin = 0;  // first row in q, k, v
  int64_t row_count = 0;
  int64_t first_position = 0;     // absolute position of row_begin
  std::vector<std::byte*> pages;  // this layer's; index i is page first_page + i
  int64_t first_page = 0;
  int64_t end_page() const { return first_page + static_cast<int64_t>(pages.size()); }
};

// The first position that a row at `position` sees; window as in AttentionArgs.
inline int64_t first_visible(int64_t position, int64_t window) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

struct AttentionArgs {
  const float* q = nullptr;  // [m, q_stride]: heads x head_dim used
  int64_t q_stride = 0;
  float* out = nullptr;  // [m, out_stride]
  int64_t out_stride = 0;
  int64_t heads = 0;  // multiple of kv.kv_heads
  KvLayout kv;
  float scale = 0;                  // multiplies q.k
  int64_t window = 0;               // key j is seen from position p when p - window < j <= p; 0: every j <= p
  std::vector<KvSegment> segments;  // all of one RowKind
  // Null: every page that a row sees is among its segment's. Else the pages come in several calls, in
  // ascending order, and each row and head carries its softmax from call to call in [m, heads,
  // state_floats(head_dim)] f32: out is complete with the call that holds a row's last page. The same bits
  // either way.
  float* state = nullptr;
  static int64_t state_floats(int64_t head_dim) { return head_dim + 2; }  // max, sum, acc
};

// The pages may also be in pinned host memory.
struct KvAppendArgs {
  const float* k = nullptr;  // [m, k_stride]: kv_heads x head_dim used
  const float* v = nullptr;  // [m, v_stride]
  int64_t k_stride = 0;
  int64_t v_stride = 0;
  KvLayout kv;
  std::vector<KvSegment> segments;
};

// Rotary embedding, half-split ("neox") pairs (i, i + rotary_dim / 2), as Hugging Face's rotate_half.
struct RopeArgs {
  float* x = nullptr;  // [m, x_stride]: heads x head_dim used, rotated in place
  int64_t x_stride = 0;
  int64_t m = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t rotary_dim = 0;           // even, at most head_dim; the rest passes through
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  float amplitude = 1.0f;           // multiplies cos and sin (attention_factor of some scalings)
  std::vector<int64_t> positions;   // [m]
};

// One RMS norm over each of `heads` groups of `dim` in a row: heads = 1 for the hidden state, q/k norm
// otherwise.
struct RmsNormArgs {
  const float* x = nullptr;  // [m, x_stride]
  int64_t x_stride = 0;
  float* y = nullptr;  // [m, y_stride]; may equal x
  int64_t y_stride = 0;
  int64_t m = 0;
  int64_t heads = 1;
  int64_t dim = 0;
  const float* weight = nullptr;  // [dim]
  float eps = 0;
  bool add_to_y = false;  // residual: y += instead of y =; y is not x then
};

enum class Activation : uint8_t { silu, gelu_tanh, gelu_erf, sigmoid };

// What a caller wants to know of one row of logits; see engine.proto Wanted for the meaning of each.
struct LogitsWanted {
  int64_t top_k = 0;                     // at most vocab; 0: none
  float temperature = 1.0f;              // logsumexp is of logits / temperature; > 0
  std::vector<int32_t> extra_ids{};      // ids whose logits are returned as they are, masked or not
  std::vector<uint64_t> allowed_mask{};  // bit i of word i/64: id i may be drawn; empty: all
  bool full_row = false;                 // also copy the whole row, unmasked
};

struct LogitsRow {
  std::vector<int32_t> top_ids;     // descending by logit, ties by ascending id; only allowed ids
  std::vector<float> top_logits;    // raw logits, untouched by temperature
  std::vector<float> extra_logits;  // same order as extra_ids
  double logsumexp = 0;             // over allowed ids, of logit / temperature; to 1e-12 of the sum
  float max_logit = 0;              // over allowed ids
  std::vector<float> full;          // [vocab] when asked
  // Why the row has no result: Error(internal) for a logit that is NaN or an infinite maximum. The rest is
  // empty then; other rows have theirs.
  std::optional<Error> error;
};

struct OpsOptions {
  Math math = Math::exact;
  KernelFamily family = KernelFamily::automatic;
  int host_threads = 1;  // of host_ops() on a device other than the CPU, which has its own pool
};

// The largest sizes that an engine's passes have.
struct WorkspaceNeeds {
  int64_t rows = 0;          // of a product's x
  int64_t cols = 0;          // of it
  int64_t heads = 0;         // of queries
  int64_t head_dim = 0;      // of attention
  int64_t decode_tiles = 0;  // pages that the decode rows of a pass see, all together
  DeltaNetShape delta_net;   // of prefill rows; no heads: none
  int64_t vocab = 0;         // of rows of logits that are reduced
};

// A stretch of ops as a device can do it again at once. Nothing of it runs any more when it is destroyed.
class RecordedLaunches {
 public:
  virtual ~RecordedLaunches() = default;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // One line for the plan: families per kind, math, and its tolerance, e.g. "exact, avx2 (decode, prefill)".
  virtual std::string describe() const = 0;

  // Measures which launches of products are the fastest, for matrices of these formats; others take the
  // ordinary ones. Once, before memory is handed out: it takes some for itself, and gives it back.
  virtual void measure_launches(std::span<const WeightFormat> /*formats*/) {}
  // What was measured, where it is not the ordinary one; may be empty.
  virtual std::string describe_launches() const { return {}; }
  // In how many ways products of decode rows are launched, all to the same bits; and from now on by this one,
  // counted anew past the last.
  virtual int decode_launches() const { return 1; }
  virtual void take_launch(int /*index*/) {}

  // Exact ops of host threads over host memory, in the order of the device's streams: for what stays at home
  // beside a device with memory of its own. On the CPU device these ops themselves.
  virtual Ops& host_ops() = 0;

  // Products of host threads over host memory, in the order of the device's streams: for the rows of a matrix
  // that stay at home, lm_head's among them. With this math, so that they round activations where these ops
  // do (matmul.h of ops/cpu says how), by the best family of the processor. On the CPU device these ops
  // themselves.
  virtual Ops& host_products() = 0;

  // Device memory that ops up to these sizes need beside their arguments, and the memory itself, for one
  // stream at a time. Without it, or past it, the ops allocate their own.
  virtual size_t workspace_bytes(const WorkspaceNeeds& /*needs*/) const { return 0; }
  virtual void set_workspace(std::byte* /*memory*/, size_t /*bytes*/) {}

  // Bytes of device memory that a recording of so many calls takes, about; 0: this device records nothing.
  virtual size_t recording_bytes(int64_t /*calls*/) const { return 0; }
  // Calls `launches`, which calls ops of this object on this stream and nothing else that the device does,
  // and enqueues what they do. Null: it cannot be repeated.
  virtual std::unique_ptr<RecordedLaunches> record(Stream& /*stream*/,
                                                   const std::function<void()>& launches) {
    launches();
    return nullptr;
  }
  // Calls `launches` again. True: the ops that it calls are those that were recorded, but for positions and
  // pages, and are enqueued, to the same bits. False: nothing is enqueued, and nothing but a new recording
  // helps.
  virtual bool repeat(Stream& /*stream*/, RecordedLaunches& /*recorded*/,
                      const std::function<void()>& /*launches*/) {
    return false;
  }

  // y[i] = row ids[i] of the embedding, times scale.
  virtual void embed(Stream& stream, const PackedMatrix& table, std::vector<int32_t> ids, float scale,
                     float* y, int64_t y_stride) = 0;
  virtual void rms_norm(Stream& stream, const RmsNormArgs& args) = 0;
  // y = act(gate) * (RMS norm of x), gate [m, y_stride] as y; args.add_to_y is not set.
  virtual void gated_norm(Stream& stream, const RmsNormArgs& args, Activation act, const float* gate) = 0;
  // x [m, x_stride], x_stride >= cols of every w (all the same).
  virtual void matmul(Stream& stream, RowKind kind, const float* x, int64_t x_stride, int64_t m,
                      std::vector<MatmulOutput> outputs) = 0;
  virtual void rope(Stream& stream, const RopeArgs& args) = 0;
  virtual void kv_append(Stream& stream, const KvAppendArgs& args) = 0;
  // Per row and head: each 512-position tile computes its own (max, sum, acc) from empty, tiles are merged in
  // ascending order (Dao et al. 2022; Milakov and Gimelshein 2018).
  virtual void attention(Stream& stream, RowKind kind, const AttentionArgs& args) = 0;
  // y = act(gate) * up, elementwise over [m, n].
  virtual void gated_activation(Stream& stream, Activation act, const float* gate, const float* up, float* y,
                                int64_t m, int64_t n, int64_t stride) = 0;
  // Gated DeltaNet, convolution included: prefill rows in the chunked form, decode rows in the recurrent one.
  // A row does not depend on later rows.
  virtual void delta_net(Stream& stream, RowKind kind, const DeltaNetArgs& args) = 0;
  // logits [m, stride] in device memory; results are complete once the stream has passed. results[i] must
  // outlive that.
  virtual void reduce_logits(Stream& stream, const float* logits, int64_t stride, int64_t vocab,
                             std::vector<LogitsWanted> wanted, std::vector<LogitsRow*> results) = 0;
  // Blocks of m rows each, in one go. Both sides may also be in pinned host memory.
  virtual void copy_rows(Stream& stream, int64_t m, std::vector<RowsCopy> copies) = 0;
  // Gathers rows: y[i] = x[rows[i]], n columns.
  virtual void gather_rows(Stream& stream, const float* x, int64_t x_stride, std::vector<int64_t> rows,
                           int64_t n, float* y, int64_t y_stride) = 0;
};

// The device must outlive the Ops. Error(invalid_argument) when the family or math does not run on this
// device, naming what would.
std::unique_ptr<Ops> make_ops(Device& device, const OpsOptions& options);

// What `--math` means when it is not given beside this family.
Math default_math(const Device& device, KernelFamily family);

}  // namespace ete
