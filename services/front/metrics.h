#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <optional>
#include <string>

#include "services/front/front_error.h"

namespace ete::front {

class WorkerPool;

// What a front counts, and what its workers tell of themselves, for Prometheus. Thread-safe.
class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Once each for every request, in this order.
  void request_begun();
  void request_ended(std::optional<FrontErrorCode> error, double seconds);

  void prompt_tokens(int64_t count) { prompt_tokens_.Increment(static_cast<double>(count)); }
  void reused_tokens(int64_t count) { reused_tokens_.Increment(static_cast<double>(count)); }
  // Of a request: from its message to its first token, in the worker's queue, and from one token to the next.
  void first_token(double seconds) { first_token_.Observe(seconds); }
  void queued(double seconds) { queue_.Observe(seconds); }
  void next_token(double seconds) { next_token_.Observe(seconds); }
  void generated_token() { generated_tokens_.Increment(); }
  void resumed() { resumed_.Increment(); }
  void refused() { refused_.Increment(); }

  // In the text format, version 0.0.4.
  std::string text(const WorkerPool& workers) const;

 private:
  prometheus::Counter& counter(const std::string& name, const std::string& help);
  prometheus::Histogram& seconds(const std::string& name, const std::string& help);

  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Gauge& running_;
  prometheus::Counter& prompt_tokens_;
  prometheus::Counter& generated_tokens_;
  prometheus::Counter& reused_tokens_;
  prometheus::Counter& resumed_;
  prometheus::Counter& refused_;
  prometheus::Histogram& first_token_;
  prometheus::Histogram& next_token_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& request_;
};

}  // namespace ete::front
