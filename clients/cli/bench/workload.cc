#include "clients/cli/bench/workload.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "engine/runtime/blocking_session.h"

namespace ete::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUpSteps = 2;
constexpr int64_t kTracedSteps = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<int32_t> ids_for(int64_t session, int64_t length, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(static_cast<int32_t>((i * 37 + session * 1009 + 11) % vocab_size));
  }
  return ids;
}

OpenRequest prompt_of(int64_t session, int64_t length, int64_t vocab_size) {
  OpenRequest request;
  request.prompt_ids = ids_for(session, length, vocab_size);
  request.wanted.top_k = 1;
  return request;
}

class Together {
 public:
  Together(Engine& engine, int sessions, int64_t depth) : position_(depth) {
    for (int i = 0; i < sessions; ++i) {
      sessions_.push_back(
          std::make_unique<BlockingSession>(engine, prompt_of(i, depth, engine.config().vocab_size)));
    }
    for (const auto& session : sessions_) best_.push_back(session->opened().rows.back().top_ids.front());
  }

  void step() {
    for (size_t i = 0; i < sessions_.size(); ++i) {
      StepRequest request;
      request.position = position_;
      request.ids = {best_[i]};
      request.wanted.top_k = 1;
      sessions_[i]->submit(std::move(request));
    }
    ++position_;
    for (size_t i = 0; i < sessions_.size(); ++i) {
      best_[i] = sessions_[i]->wait().rows.back().top_ids.front();
    }
  }

 private:
  std::vector<std::unique_ptr<BlockingSession>> sessions_;
  std::vector<int32_t> best_;  // [sessions]: fed next
  int64_t position_;
};

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto index = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index), values.end());
  return values[index];
}

}  // namespace

double Samples::median() const { return quantile(values, 0.5); }
double Samples::lowest() const { return quantile(values, 0); }
double Samples::highest() const { return quantile(values, 1); }

int64_t positions_of(const Workload& workload) {
  return workload.depth + kWarmUpSteps + std::max(workload.steps * workload.repeats, kTracedSteps);
}

DecodeTimes measure_decode(Engine& engine, int sessions, const Workload& workload) {
  Together together(engine, sessions, workload.depth);
  for (int64_t i = 0; i < kWarmUpSteps; ++i) together.step();
  DecodeTimes times;
  std::vector<double> step_ms;
  for (int64_t repeat = 0; repeat < workload.repeats; ++repeat) {
    const auto begin = Clock::now();
    for (int64_t i = 0; i < workload.steps; ++i) {
      const auto step_begin = Clock::now();
      together.step();
      step_ms.push_back(1e3 * seconds_since(step_begin));
    }
    times.tokens_per_second.values.push_back(static_cast<double>(sessions * workload.steps) /
                                             seconds_since(begin));
  }
  times.p50_ms = quantile(step_ms, 0.5);
  times.p99_ms = quantile(step_ms, 0.99);
  return times;
}

std::vector<Timeline::Span> trace_decode(Engine& engine, Timeline& timeline, int sessions, int64_t depth) {
  Together together(engine, sessions, depth);
  for (int64_t i = 0; i < kWarmUpSteps; ++i) together.step();
  timeline.start();
  for (int64_t i = 0; i < kTracedSteps; ++i) together.step();
  return timeline.stop();
}

Samples measure_first_token(Engine& engine, int64_t length, int64_t repeats) {
  Samples seconds;
  for (int64_t repeat = 0; repeat < repeats; ++repeat) {
    const auto begin = Clock::now();
    BlockingSession session(engine, prompt_of(repeat, length, engine.config().vocab_size));
    session.opened();
    seconds.values.push_back(seconds_since(begin));
  }
  return seconds;
}

}  // namespace ete::cli
