#include "clients/cli/bench/proof.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "engine/runtime/blocking_session.h"

namespace ete::cli {
namespace {

constexpr double kPlainProducts = 2e10;  // multiply-adds that plain kernels do in a few seconds
constexpr int64_t kSteps = 2;
constexpr int64_t kLeastPrompt = 2;
constexpr int64_t kMostPrompt = 18;
constexpr double kExactTolerance = 1e-4;
constexpr double kRoundedKvTolerance = 2e-3;
constexpr double kFastTolerance = 5e-2;

std::vector<int32_t> some_ids(int64_t first, int64_t count, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (int64_t i = first; i < first + count; ++i) {
    ids.push_back(static_cast<int32_t>((i * 7919 + 101) % vocab_size));
  }
  return ids;
}

LogitsWanted whole_rows() {
  LogitsWanted wanted;
  wanted.full_row = true;
  return wanted;
}

// All rows of one session among those that share its passes.
using SessionRows = std::vector<std::vector<float>>;

std::vector<SessionRows> rows_of(Engine& engine, const PlainRows& text, int sessions) {
  std::vector<std::unique_ptr<BlockingSession>> open;
  std::vector<SessionRows> rows(static_cast<size_t>(sessions));
  const auto take = [&](size_t session, StepResult result) {
    for (LogitsRow& row : result.rows) rows[session].push_back(std::move(row.full));
  };
  for (int i = 0; i < sessions; ++i) {
    OpenRequest request;
    request.prompt_ids = text.prompt;
    request.rows = WantedRows::all;
    request.wanted = whole_rows();
    open.push_back(std::make_unique<BlockingSession>(engine, std::move(request)));
  }
  for (size_t i = 0; i < open.size(); ++i) take(i, open[i]->opened());
  auto position = static_cast<int64_t>(text.prompt.size());
  for (const int32_t id : text.steps) {
    for (const auto& session : open) {
      StepRequest request;
      request.position = position;
      request.ids = {id};
      request.wanted = whole_rows();
      session->submit(std::move(request));
    }
    for (size_t i = 0; i < open.size(); ++i) take(i, open[i]->wait());
    ++position;
  }
  return rows;
}

double largest(const std::vector<float>& row) {
  double most = 0;
  for (const float value : row) most = std::max(most, std::abs(static_cast<double>(value)));
  return most;
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double here = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!std::isfinite(here)) return std::numeric_limits<double>::infinity();
    most = std::max(most, here);
  }
  return most;
}

}  // namespace

PlainRows plain_rows(const EngineOptions& options, const Plan& plan, int64_t vocab_size) {
  const auto affordable =
      static_cast<int64_t>(kPlainProducts / static_cast<double>(std::max<uint64_t>(plan.weights_per_row, 1)));
  PlainRows text;
  text.prompt = some_ids(0, std::clamp(affordable - kSteps, kLeastPrompt, kMostPrompt), vocab_size);
  const int64_t room = plan.context - static_cast<int64_t>(text.prompt.size());
  text.steps = some_ids(kMostPrompt, std::min(kSteps, room), vocab_size);
  EngineOptions plain;
  plain.model = options.model;
  plain.device = "cpu";
  plain.kernels = "plain";
  plain.math = "exact";
  plain.kv_type = options.kv_type;
  plain.weights = options.weights;
  plain.threads = options.threads;
  plain.accept_unknown = options.accept_unknown;
  plain.max_sessions = 1;
  plain.prefix_cache = 0;
  plain.context = plan.context;
  text.rows = std::move(rows_of(*Engine::load(plain), text, 1).front());
  return text;
}

double error_against(const PlainRows& plain, Engine& engine, int sessions) {
  double scale = 0;
  for (const auto& row : plain.rows) scale = std::max(scale, largest(row));
  double most = 0;
  for (const SessionRows& rows : rows_of(engine, plain, sessions)) {
    if (rows.size() != plain.rows.size()) return std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < rows.size(); ++i) most = std::max(most, difference(rows[i], plain.rows[i]));
  }
  return scale > 0 ? most / scale : most;
}

double tolerance_of(const Plan& plan, const std::string& kv_type) {
  if (plan.kernels.starts_with("fast")) return kFastTolerance;
  return kv_type == "f32" ? kExactTolerance : kRoundedKvTolerance;
}

}  // namespace ete::cli
