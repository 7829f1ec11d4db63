#include "engine/ops/check_args.h"

#include "engine/base/check.h"

namespace ete {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void check_kv(const KvLayout& kv, const std::vector<KvSegment>& segments) {
  CHECK(kv.type == DType::f32 || kv.type == DType::f16 || kv.type == DType::bf16,
        std::string(name_of(kv.type)));
  CHECK(kv.kv_heads > 0, std::to_string(kv.kv_heads));
  CHECK(kv.head_dim >= 2 && kv.head_dim <= kMaxHeadDim && kv.head_dim % 2 == 0, std::to_string(kv.head_dim));
  for (const KvSegment& segment : segments) {
    CHECK(segment.row_begin >= 0 && segment.row_count >= 0 && segment.first_position >= 0, "negative");
    CHECK(segment.first_page >= 0, std::to_string(segment.first_page));
  }
}

// Every position from `first` to the segment's last has its page.
void check_pages(const KvSegment& segment, int64_t first) {
  const int64_t end = segment.first_position + segment.row_count;
  const int64_t held = segment.end_page() * kKvTile;
  CHECK(end <= held, std::to_string(end) + " positions, pages for " + std::to_string(held));
  CHECK(first >= segment.first_page * kKvTile, std::to_string(first));
}

void check_output(const MatmulOutput& output, int64_t cols, int64_t x_stride, int64_t m) {
  CHECK(output.w.data != nullptr && output.y != nullptr, "null matrix or result");
  CHECK(output.w.cols == cols && cols > 0 && cols <= x_stride, "cols " + std::to_string(output.w.cols) +
                                                                   " of " + std::to_string(cols) +
                                                                   ", x_stride " + std::to_string(x_stride));
  CHECK(output.row_begin >= 0 && output.row_begin % kPanelRows == 0 && output.row_begin <= output.row_end &&
            output.row_end <= output.w.rows &&
            (output.row_end == output.w.rows || output.row_end % kPanelRows == 0),
        "rows [" + std::to_string(output.row_begin) + ", " + std::to_string(output.row_end) + ") of " +
            std::to_string(output.w.rows));
  CHECK(output.row_end <= output.y_stride || m <= 1, "y_stride " + std::to_string(output.y_stride));
}

void check_wanted(const std::string& row, int64_t vocab, const LogitsWanted& wanted) {
  if (wanted.top_k < 0 || wanted.top_k > vocab) {
    refuse(row + ": top_k: " + std::to_string(wanted.top_k) + "; accepted: 0 to " + std::to_string(vocab));
  }
  if (!(wanted.temperature > 0.0f)) {
    refuse(row + ": temperature: " + std::to_string(wanted.temperature) + "; accepted: above 0");
  }
  for (const int32_t id : wanted.extra_ids) {
    if (id < 0 || id >= vocab) {
      refuse(row + ": extra_ids: " + std::to_string(id) + "; accepted: 0 to " + std::to_string(vocab - 1));
    }
  }
  const auto words = static_cast<size_t>((vocab + 63) / 64);
  if (!wanted.allowed_mask.empty() && wanted.allowed_mask.size() != words) {
    refuse(row + ": allowed_mask: " + std::to_string(wanted.allowed_mask.size()) + " words; accepted: 0 or " +
           std::to_string(words));
  }
}

}  // namespace

void check_embed(const PackedMatrix& table, std::span<const int32_t> ids, int64_t y_stride) {
  CHECK(y_stride >= table.cols, std::to_string(y_stride));
  for (const int32_t id : ids) {
    if (id < 0 || id >= table.rows) {
      refuse("token id " + std::to_string(id) + "; accepted: 0 to " + std::to_string(table.rows - 1));
    }
  }
}

void check_matmul(const float* x, int64_t x_stride, int64_t m, std::span<const MatmulOutput> outputs) {
  CHECK(m > 0 && x != nullptr, "m = " + std::to_string(m));
  for (const MatmulOutput& output : outputs) check_output(output, outputs.front().w.cols, x_stride, m);
}

void check_rope(const RopeArgs& args) {
  CHECK(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
        std::to_string(args.rotary_dim));
  CHECK(static_cast<int64_t>(args.positions.size()) == args.m, std::to_string(args.positions.size()));
  CHECK(args.x_stride >= args.heads * args.head_dim, std::to_string(args.x_stride));
}

void check_kv_append(const KvAppendArgs& args) {
  check_kv(args.kv, args.segments);
  for (const KvSegment& segment : args.segments) check_pages(segment, segment.first_position);
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  CHECK(args.k_stride >= width && args.v_stride >= width, std::to_string(width));
}

void check_attention(const AttentionArgs& args) {
  check_kv(args.kv, args.segments);
  CHECK(args.heads > 0 && args.heads % args.kv.kv_heads == 0, std::to_string(args.heads));
  CHECK(args.window >= 0, std::to_string(args.window));
  for (const KvSegment& segment : args.segments) {
    if (args.state == nullptr) check_pages(segment, first_visible(segment.first_position, args.window));
  }
  const int64_t width = args.heads * args.kv.head_dim;
  CHECK(args.q_stride >= width && args.out_stride >= width, std::to_string(width));
}

void check_delta_net(const DeltaNetArgs& args) {
  const DeltaNetShape& shape = args.shape;
  CHECK(shape.key_heads > 0 && shape.value_heads > 0 && shape.value_heads % shape.key_heads == 0,
        std::to_string(shape.value_heads) + " value heads of " + std::to_string(shape.key_heads));
  CHECK(shape.key_dim > 0 && shape.value_dim > 0 && shape.conv_kernel >= 2,
        std::to_string(shape.conv_kernel) + " taps");
  CHECK(args.x_stride >= shape.input_width() && args.out_stride >= shape.value_width(),
        std::to_string(args.x_stride));
  for (const DeltaNetSegment& segment : args.segments) {
    CHECK(segment.row_begin >= 0 && segment.row_count >= 0 && segment.first_position >= 0, "negative");
    CHECK(segment.draft_rows >= 0 && segment.draft_rows <= segment.row_count,
          std::to_string(segment.draft_rows));
    CHECK(segment.state != nullptr, "no state");
    CHECK(segment.accepted != nullptr || segment.accepted_rows == 0, std::to_string(segment.accepted_rows));
    CHECK(segment.drafts != nullptr || segment.draft_rows == 0, std::to_string(segment.draft_rows));
  }
}

void check_copy_rows(int64_t m, std::span<const RowsCopy> copies) {
  CHECK(m >= 0, std::to_string(m));
  for (const RowsCopy& copy : copies) {
    CHECK(copy.x != nullptr && copy.y != nullptr && copy.n > 0, std::to_string(copy.n));
    CHECK(m <= 1 || (copy.n <= copy.x_stride && copy.n <= copy.y_stride), std::to_string(copy.n));
  }
}

void check_reduce_logits(int64_t stride, int64_t vocab, std::span<const LogitsWanted> wanted,
                         std::span<LogitsRow* const> results) {
  CHECK(vocab > 0 && stride >= vocab, std::to_string(vocab));
  CHECK(wanted.size() == results.size(), std::to_string(results.size()));
  for (size_t row = 0; row < wanted.size(); ++row) {
    check_wanted("logits row " + std::to_string(row), vocab, wanted[row]);
  }
}

}  // namespace ete
