#include "engine/runtime/request_checks.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/runtime/byte_text.h"
#include "engine/runtime/planner.h"

namespace ete {

namespace {

// Whole rows of one result; more than this must be asked for in several steps.
constexpr uint64_t kMaxFullRowBytes = uint64_t{1} << 30;

[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& accepted) {
  throw Error(ErrorCode::invalid_argument, field + ": " + value + "; accepted: " + accepted);
}

void check_ids(const std::string& field, std::span<const int32_t> ids, int64_t vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) continue;
    refuse(field + "[" + std::to_string(i) + "]", std::to_string(ids[i]),
           "0 to " + std::to_string(vocab - 1));
  }
}

void check_mask(const std::vector<uint64_t>& mask, int64_t vocab) {
  if (mask.empty()) return;
  const auto words = static_cast<size_t>((vocab + 63) / 64);
  if (mask.size() != words) {
    refuse("wanted.allowed_mask", std::to_string(mask.size()) + " words of 64 bits",
           "0 or " + std::to_string(words));
  }
  const uint64_t last = vocab % 64 == 0 ? ~uint64_t{0} : (uint64_t{1} << (vocab % 64)) - 1;
  const bool any = std::any_of(mask.begin(), mask.end() - 1, [](uint64_t word) { return word != 0; });
  if (!any && (mask.back() & last) == 0)
    refuse("wanted.allowed_mask", "no id allowed", "at least one allowed id");
}

void check_wanted(const LogitsWanted& wanted, int64_t rows, int64_t vocab) {
  if (wanted.top_k < 0 || wanted.top_k > vocab) {
    refuse("wanted.top_k", std::to_string(wanted.top_k), "0 to " + std::to_string(vocab));
  }
  if (!(std::isfinite(wanted.temperature) && wanted.temperature > 0)) {
    refuse("wanted.temperature", std::to_string(wanted.temperature), "finite and above 0");
  }
  check_ids("wanted.extra_ids", wanted.extra_ids, vocab);
  check_mask(wanted.allowed_mask, vocab);
  const auto row_bytes = static_cast<uint64_t>(vocab) * sizeof(float);
  if (wanted.full_row && static_cast<uint64_t>(rows) * row_bytes > kMaxFullRowBytes) {
    throw Error(ErrorCode::resource_exhausted,
                "wanted.full_row: " + std::to_string(rows) + " rows of " + byte_text(row_bytes) +
                    "; at most " + std::to_string(kMaxFullRowBytes / row_bytes) + " rows of one step");
  }
}

void check_context(int64_t length, int64_t count, int64_t context) {
  if (count <= context - length) return;
  throw Error(ErrorCode::resource_exhausted, "context: " + std::to_string(length) + " positions held and " +
                                                 std::to_string(count) + " more; at most " +
                                                 std::to_string(context) + " fit (--context)");
}

int64_t wanted_rows(WantedRows rows, int64_t count, int64_t n_draft) {
  if (rows == WantedRows::none) return 0;
  return rows == WantedRows::all ? count : n_draft + 1;
}

}  // namespace

void check_open(const OpenRequest& request, int64_t length, const RequestLimits& limits) {
  const auto count = static_cast<int64_t>(request.prompt_ids.size());
  check_ids("prompt_ids", request.prompt_ids, limits.vocab);
  check_context(length, count, limits.context);
  check_wanted(request.wanted, wanted_rows(request.rows, count, 0), limits.vocab);
}

void check_step(const StepRequest& request, int64_t length, const RequestLimits& limits) {
  const auto count = static_cast<int64_t>(request.ids.size());
  if (request.position < 0 || request.position > length) {
    refuse("position", std::to_string(request.position),
           "0 to the session's length, " + std::to_string(length));
  }
  if (count == 0) refuse("ids", "empty", "at least one id");
  if (request.n_draft < 0 || request.n_draft > std::min(count - 1, kMaxDrafts)) {
    refuse("n_draft", std::to_string(request.n_draft),
           "0 to " + std::to_string(std::min(count - 1, kMaxDrafts)));
  }
  check_ids("ids", request.ids, limits.vocab);
  check_context(request.position, count, limits.context);
  check_wanted(request.wanted, wanted_rows(request.rows, count, request.n_draft), limits.vocab);
}

}  // namespace ete
