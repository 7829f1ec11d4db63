#include "engine/ops/cpu/cpu_ops.h"

#include "engine/base/check.h"
#include "engine/ops/check_args.h"
#include "engine/ops/cpu/delta_net.h"

namespace ete {

CpuOps::CpuOps(Device& device, ThreadPool& pool, const OpsOptions& options)
    : device_(device),
      math_(options.math),
      matmul_(options.family, options.math),
      workspace_(pool.size()),
      context_{.pool = pool,
               .workspace = workspace_,
               .family = resolve_matmul_family(options.family, options.math)} {}

std::string CpuOps::describe() const {
  const std::string family(name_of(context_.family));
  if (math_ == Math::exact) return "exact, " + family + " (decode, prefill)";
  const std::string rounding = ": x rounded to int8 per 32 columns, each by at most absmax / 254)";
  if (matmul_.rounds(RowKind::prefill, WeightFormat::w8_row))
    return "fast, " + family + " (decode, prefill" + rounding;
  return "fast, " + family + " (decode" + rounding + "; exact, " + family + " (prefill)";
}

void CpuOps::embed(Stream& stream, const PackedMatrix& table, std::vector<int32_t> ids, float scale, float* y,
                   int64_t y_stride) {
  check_embed(table, ids, y_stride);
  device_.host_async(stream, [this, table, ids = std::move(ids), scale, y, y_stride] {
    embed_cpu(context_, table, ids, scale, y, y_stride);
  });
}

void CpuOps::rms_norm(Stream& stream, const RmsNormArgs& args) {
  device_.host_async(stream, [this, args] { rms_norm_cpu(context_, args); });
}

void CpuOps::gated_norm(Stream& stream, const RmsNormArgs& args, Activation act, const float* gate) {
  CHECK(!args.add_to_y, "a gated norm is no residual");
  rms_norm(stream, args);
  gated_activation(stream, act, gate, args.y, args.y, args.m, args.heads * args.dim, args.y_stride);
}

void CpuOps::matmul(Stream& stream, RowKind kind, const float* x, int64_t x_stride, int64_t m,
                    std::vector<MatmulOutput> outputs) {
  device_.host_async(stream, [this, kind, x, x_stride, m, outputs = std::move(outputs)] {
    matmul_cpu(context_, matmul_, kind, x, x_stride, m, outputs);
  });
}

void CpuOps::rope(Stream& stream, const RopeArgs& args) {
  check_rope(args);
  device_.host_async(stream, [this, args] { rope_cpu(context_, args); });
}

void CpuOps::kv_append(Stream& stream, const KvAppendArgs& args) {
  check_kv_append(args);
  device_.host_async(stream, [this, args] { kv_append_cpu(context_, args); });
}

void CpuOps::attention(Stream& stream, RowKind kind, const AttentionArgs& args) {
  check_attention(args);
  device_.host_async(stream, [this, kind, args] { attention_cpu(context_, kind, args); });
}

void CpuOps::gated_activation(Stream& stream, Activation act, const float* gate, const float* up, float* y,
                              int64_t m, int64_t n, int64_t stride) {
  device_.host_async(stream, [this, args = GatedActivationArgs{act, gate, up, y, m, n, stride}] {
    gated_activation_cpu(context_, args);
  });
}

void CpuOps::delta_net(Stream& stream, RowKind kind, const DeltaNetArgs& args) {
  check_delta_net(args);
  device_.host_async(stream, [this, kind, args] { delta_net_cpu(context_, kind, args); });
}

void CpuOps::reduce_logits(Stream& stream, const float* logits, int64_t stride, int64_t vocab,
                           std::vector<LogitsWanted> wanted, std::vector<LogitsRow*> results) {
  check_reduce_logits(stride, vocab, wanted, results);
  device_.host_async(stream,
                     [this, logits, stride, vocab, wanted = std::move(wanted), results = std::move(results)] {
                       reduce_logits_cpu(context_, logits, stride, vocab, wanted, results);
                     });
}

void CpuOps::copy_rows(Stream& stream, int64_t m, std::vector<RowsCopy> copies) {
  check_copy_rows(m, copies);
  device_.host_async(stream, [this, m, copies = std::move(copies)] { copy_rows_cpu(context_, m, copies); });
}

void CpuOps::gather_rows(Stream& stream, const float* x, int64_t x_stride, std::vector<int64_t> rows,
                         int64_t n, float* y, int64_t y_stride) {
  device_.host_async(stream, [this, args = GatherRowsArgs{x, x_stride, std::move(rows), n, y, y_stride}] {
    gather_rows_cpu(context_, args);
  });
}

}  // namespace ete
