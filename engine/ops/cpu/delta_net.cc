#include "engine/ops/cpu/delta_net.h"

#include <cstring>

namespace ete {

namespace {

// The convolution's part of the state becomes the last positions before the drafts, and the drafts' inputs
// are kept. After every head has read what is overwritten here.
void finish_segment(const DeltaNetArgs& args, const DeltaNetSegment& segment) {
  const DeltaNetShape& shape = args.shape;
  const int64_t width = shape.conv_width();
  const int64_t remembered = shape.conv_kernel - 1;
  const int64_t taken = segment.accepted_rows + segment.row_count - segment.draft_rows;
  float* columns = segment.state + shape.matrix_floats();  // [remembered, width]
  // In ascending order: a column that stays moves to an earlier place.
  for (int64_t i = 0; i < remembered && taken > 0; ++i) {
    std::memcpy(columns + i * width, delta_net_input(args, segment, taken - remembered + i),
                static_cast<size_t>(width) * sizeof(float));
  }
  for (int64_t i = 0; i < segment.draft_rows; ++i) {
    std::memcpy(segment.drafts + i * shape.input_width(), delta_net_input(args, segment, taken + i),
                static_cast<size_t>(shape.input_width()) * sizeof(float));
  }
}

}  // namespace

const float* delta_net_input(const DeltaNetArgs& args, const DeltaNetSegment& segment, int64_t index) {
  if (index < 0) {
    const int64_t column = args.shape.conv_kernel - 1 + index;
    return segment.state + args.shape.matrix_floats() + column * args.shape.conv_width();
  }
  if (index < segment.accepted_rows) return segment.accepted + index * args.shape.input_width();
  return args.x + (segment.row_begin + index - segment.accepted_rows) * args.x_stride;
}

void delta_net_cpu(const CpuContext& context, RowKind kind, const DeltaNetArgs& args) {
  const DeltaNetKernels& kernels = context.is_plain() ? kDeltaNetPlain : kDeltaNetAvx2;
  const size_t scratch = delta_net_scratch_floats(args.shape);
  const auto segments = static_cast<int64_t>(args.segments.size());
  const int64_t heads = args.shape.value_heads;
  context.pool.parallel_for(segments * heads, [&](int64_t task, int worker) {
    delta_net_head(kernels, kind, args, args.segments[static_cast<size_t>(task / heads)], task % heads,
                   context.workspace.of_worker(worker, scratch));
  });
  for_row_blocks(context.pool, segments, (args.shape.conv_kernel - 1) * args.shape.conv_width(),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i)
                     finish_segment(args, args.segments[static_cast<size_t>(i)]);
                 });
}

}  // namespace ete
