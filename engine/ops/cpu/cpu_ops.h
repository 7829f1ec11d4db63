#pragma once

#include "engine/device/cpu/thread_pool.h"
#include "engine/ops/cpu/kernels.h"
#include "engine/ops/cpu/matmul.h"
#include "engine/ops/ops.h"

namespace ete {

// Ops of host threads: checks the arguments on the caller's thread (Error names what is wrong), then runs the
// op when the stream of `device` reaches it, on the pool. Device and pool outlive it; it outlives the work
// that it has submitted.
class CpuOps : public Ops {
 public:
  CpuOps(Device& device, ThreadPool& pool, const OpsOptions& options);

  std::string describe() const override;
  Ops& host_ops() override { return *this; }
  Ops& host_products() override { return *this; }
  void embed(Stream& stream, const PackedMatrix& table, std::vector<int32_t> ids, float scale, float* y,
             int64_t y_stride) override;
  void rms_norm(Stream& stream, const RmsNormArgs& args) override;
  void gated_norm(Stream& stream, const RmsNormArgs& args, Activation act, const float* gate) override;
  void matmul(Stream& stream, RowKind kind, const float* x, int64_t x_stride, int64_t m,
              std::vector<MatmulOutput> outputs) override;
  void rope(Stream& stream, const RopeArgs& args) override;
  void kv_append(Stream& stream, const KvAppendArgs& args) override;
  void attention(Stream& stream, RowKind kind, const AttentionArgs& args) override;
  void gated_activation(Stream& stream, Activation act, const float* gate, const float* up, float* y,
                        int64_t m, int64_t n, int64_t stride) override;
  void delta_net(Stream& stream, RowKind kind, const DeltaNetArgs& args) override;
  void reduce_logits(Stream& stream, const float* logits, int64_t stride, int64_t vocab,
                     std::vector<LogitsWanted> wanted, std::vector<LogitsRow*> results) override;
  void copy_rows(Stream& stream, int64_t m, std::vector<RowsCopy> copies) override;
  void gather_rows(Stream& stream, const float* x, int64_t x_stride, std::vector<int64_t> rows, int64_t n,
                   float* y, int64_t y_stride) override;

 private:
  Device& device_;
  Math math_;
  MatmulPath matmul_;
  Workspace workspace_;
  CpuContext context_;
};

}  // namespace ete
