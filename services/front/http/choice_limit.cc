#include "services/front/http/choice_limit.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

struct Limit {
  int64_t most;
  std::string whose;
};

// Sessions that run or wait at a worker with this plan.
int64_t places_of(const std::string& plan_json) {
  const RequestJson plan = RequestJson::parse(plan_json, nullptr, false);
  if (!plan.is_object()) return kUnknown;
  const auto active = plan.find("max_sessions"), queued = plan.find("max_queued");
  if (active == plan.end() || queued == plan.end() || !active->is_number_integer() ||
      !queued->is_number_integer()) {
    return kUnknown;
  }
  return active->get<int64_t>() + queued->get<int64_t>();
}

// At all workers of the model together. One that is away may come back with any number.
int64_t places_of(const WorkerPool& workers, const std::string& model) {
  int64_t places = 0;
  for (const auto& worker : workers.workers()) {
    const EngineClient::State state = worker->state();
    if (!model.empty() && !state.name.empty() && state.name != model) continue;
    const int64_t more = state.serving != nullptr ? places_of(state.serving->plan_json) : kUnknown;
    if (more == kUnknown) return kUnknown;
    places += more;
  }
  return places;
}

void require(int64_t count, const Limit& limit, const OpenAiRequest& request) {
  if (count <= limit.most) return;
  const std::string field = request.n > 1 ? "n" : request.names.prompt;
  throw FrontError(FrontErrorCode::invalid_argument,
                   field + ": " + std::to_string(count) + " choices (n " + std::to_string(request.n) +
                       " for each prompt) are not accepted; expected at most " + std::to_string(limit.most) +
                       " together, as many as " + limit.whose,
                   field);
}

}  // namespace

void require_few_choices(const OpenAiHost& host, const OpenAiRequest& request,
                         const service::Caller& caller) {
  const int64_t count = static_cast<int64_t>(std::max<size_t>(request.prompts.size(), 1)) * request.n;
  if (count == 1) return;
  if (const auto& holder = caller.holder; holder != nullptr) {
    const auto most = holder->limits().concurrent;
    if (most != 0) require(count, {most, "the token " + holder->name() + " may have running"}, request);
  }
  require(count, {host.shared.requests.most(), "this front takes (--max-requests)"}, request);
  require(count,
          {places_of(host.shared.workers, request.settings.model()),
           "run or wait at the workers (--max-sessions and --max-queued)"},
          request);
}

}  // namespace ete::front
