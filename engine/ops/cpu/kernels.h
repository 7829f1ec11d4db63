#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/device/cpu/thread_pool.h"
#include "engine/ops/ops.h"

// The CPU's implementation of each op of ops.h, run to its end by the calling thread and the pool. Argument
// structs and pointers are as in ops.h, already checked by CpuOps. Every op has a plain version, the oracle,
// and a vector version for AVX2 that the families above it use too.

namespace ete {

// Scratch memory, kept from call to call. 64-byte aligned, contents undefined.
class Workspace {
 public:
  explicit Workspace(int workers) : blocks_(static_cast<size_t>(workers)) {}
  // Only valid inside one loop of the pool, which makes the worker its only user.
  float* of_worker(int worker, size_t floats) {
    return at_least(&blocks_.at(static_cast<size_t>(worker)), floats);
  }

  // What the loops of one op leave each other. Other users wait while the holder lives.
  class Shared {
   public:
    float* data() const { return data_; }

   private:
    friend class Workspace;
    std::unique_lock<std::mutex> lock_;
    float* data_ = nullptr;
  };
  Shared shared(size_t floats);

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  struct Block {
    std::unique_ptr<float[], Free> data;
    size_t floats = 0;
  };
  static float* at_least(Block* block, size_t floats);

  std::vector<Block> blocks_;
  std::mutex shared_mutex_;
  Block shared_;
};

struct CpuContext {
  ThreadPool& pool;
  Workspace& workspace;
  KernelFamily family;  // never automatic
  bool is_plain() const { return family == KernelFamily::plain; }
};

void embed_cpu(const CpuContext& context, const PackedMatrix& table, std::span<const int32_t> ids,
               float scale, float* y, int64_t y_stride);
void rms_norm_cpu(const CpuContext& context, const RmsNormArgs& args);
void rope_cpu(const CpuContext& context, const RopeArgs& args);
void kv_append_cpu(const CpuContext& context, const KvAppendArgs& args);
void attention_cpu(const CpuContext& context, RowKind kind, const AttentionArgs& args);

struct GatedActivationArgs {
  Activation activation = Activation::silu;
  const float* gate = nullptr;  // [m, stride], n used
  const float* up = nullptr;    // [m, stride]
  float* y = nullptr;           // [m, stride]; may equal gate or up
  int64_t m = 0;
  int64_t n = 0;
  int64_t stride = 0;
};
void gated_activation_cpu(const CpuContext& context, const GatedActivationArgs& args);

// Fills every row that it can, then throws the error of the first that it cannot.
void reduce_logits_cpu(const CpuContext& context, const float* logits, int64_t stride, int64_t vocab,
                       std::span<const LogitsWanted> wanted, std::span<LogitsRow* const> results);

void copy_rows_cpu(const CpuContext& context, int64_t m, std::span<const RowsCopy> copies);

struct GatherRowsArgs {
  const float* x = nullptr;  // [?, x_stride]
  int64_t x_stride = 0;
  std::vector<int64_t> rows;
  int64_t n = 0;
  float* y = nullptr;  // [rows.size(), y_stride]
  int64_t y_stride = 0;
};
void gather_rows_cpu(const CpuContext& context, const GatherRowsArgs& args);

// Splits [0, rows) into tasks of at least a few thousand elements: body(begin, end).
void for_row_blocks(ThreadPool& pool, int64_t rows, int64_t elements_per_row,
                    const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace ete
