#include "engine/ops/cpu/check_args.h"

#include "engine/base/check.h"

namespace ete {

namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void check_kv(const KvLayout& kv, const std::vector<KvSegment>& segments) {
  CHECK(kv.type == DType::f32 || kv.type == DType::f16 || kv.type == DType::bf16,
        std::string(name_of(kv.type)));
  CHECK(kv.kv_heads > 0, std::to_string(kv.kv_heads));
  CHECK(kv.head_dim >= 16 && kv.head_dim <= 256 && kv.head_dim % 2 == 0, std::to_string(kv.head_dim));
  for (const KvSegment& segment : segments) {
    CHECK(segment.row_begin >= 0 && segment.row_count >= 0 && segment.first_position >= 0, "negative");
    const int64_t end = segment.first_position + segment.row_count;
    const auto held = static_cast<int64_t>(segment.pages.size()) * kKvTile;
    CHECK(end <= held, std::to_string(end) + " positions, pages for " + std::to_string(held));
  }
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

void check_rope(const RopeArgs& args) {
  CHECK(args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
        std::to_string(args.rotary_dim));
  CHECK(static_cast<int64_t>(args.positions.size()) == args.m, std::to_string(args.positions.size()));
  CHECK(args.x_stride >= args.heads * args.head_dim, std::to_string(args.x_stride));
}

void check_kv_append(const KvAppendArgs& args) {
  check_kv(args.kv, args.segments);
  const int64_t width = args.kv.kv_heads * args.kv.head_dim;
  CHECK(args.k_stride >= width && args.v_stride >= width, std::to_string(width));
}

void check_attention(const AttentionArgs& args) {
  check_kv(args.kv, args.segments);
  CHECK(args.heads > 0 && args.heads % args.kv.kv_heads == 0, std::to_string(args.heads));
  CHECK(args.window >= 0, std::to_string(args.window));
  const int64_t width = args.heads * args.kv.head_dim;
  CHECK(args.q_stride >= width && args.out_stride >= width, std::to_string(width));
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
