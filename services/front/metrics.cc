#include "services/front/metrics.h"

#include <prometheus/text_serializer.h>

#include <iterator>
#include <vector>

#include "services/common/process.h"
#include "services/front/status.h"
#include "services/front/worker_pool.h"

namespace ete::front {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

// From 1 ms, a token of a small model, to 2 minutes, a long prompt of one that streams.
const prometheus::Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                          0.5,   1,      2.5,   5,    10,    30,   60,  120};

// One figure of GetStatusReply.
struct WorkerFigure {
  const char* name;
  const char* help;
  MetricType type;
  double (*value)(const v1::GetStatusReply& status);
};

const std::vector<WorkerFigure>& worker_figures() {
  using Status = v1::GetStatusReply;
  static const std::vector<WorkerFigure> figures = {
      {"ete_worker_sessions", "Sessions that hold memory.", MetricType::Gauge,
       [](const Status& s) -> double { return s.sessions(); }},
      {"ete_worker_queued_sessions", "Sessions that wait for a place.", MetricType::Gauge,
       [](const Status& s) -> double { return s.queued(); }},
      {"ete_worker_queued_tokens", "Tokens of prompts that are not computed yet.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.queued_tokens()); }},
      {"ete_worker_passes_total", "Passes over the weights.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.passes()); }},
      {"ete_worker_pass_seconds_total", "Time in passes.", MetricType::Counter,
       [](const Status& s) { return s.pass_ms() / 1000; }},
      {"ete_worker_last_pass_rows", "Rows of the last pass: its batch.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.last_pass_rows()); }},
      {"ete_worker_decode_rows_total", "Rows of passes that decode.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.decode_rows()); }},
      {"ete_worker_prefill_rows_total", "Rows of passes that read prompts.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.prefill_rows()); }},
      {"ete_worker_link_bytes_total", "Bytes of layers streamed to the device.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.link_bytes()); }},
      {"ete_worker_device_bytes", "Bytes allocated on the device.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.device_bytes()); }},
      {"ete_worker_host_bytes", "Bytes of RAM that the process occupies.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.resident_set_bytes()); }},
      {"ete_worker_session_bytes", "Bytes of keys, values and states of sessions.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.session_bytes()); }},
      {"ete_worker_prefix_cache_bytes", "Bytes of cached prefixes.", MetricType::Gauge,
       [](const Status& s) { return static_cast<double>(s.prefix_cache_bytes()); }},
      {"ete_worker_prefix_lookups_total", "Prompts looked up in the prefix cache.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.prefix_lookups()); }},
      {"ete_worker_prefix_hits_total", "Prompts of which a part was found there.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.prefix_hits()); }},
      {"ete_worker_reused_tokens_total", "Positions of prompts found there.", MetricType::Counter,
       [](const Status& s) { return static_cast<double>(s.reused_tokens()); }},
  };
  return figures;
}

void add_value(MetricFamily& family, const std::string& worker, double value) {
  prometheus::ClientMetric metric;
  metric.label.push_back({"worker", worker});
  if (family.type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  family.metric.push_back(std::move(metric));
}

std::vector<MetricFamily> worker_families(const WorkerPool& workers) {
  MetricFamily up{"ete_worker_up", "Whether the worker serves: 1, or 0.", MetricType::Gauge, {}};
  MetricFamily idle{"ete_worker_link_idle_ratio",
                    "Share of a pass in which no layer was on its way to the device; sampled.",
                    MetricType::Gauge,
                    {}};
  std::vector<MetricFamily> families;
  for (const WorkerFigure& figure : worker_figures()) {
    families.push_back({figure.name, figure.help, figure.type, {}});
  }
  for (const auto& worker : workers.workers()) {
    add_value(up, worker->label().name, worker->state().serving != nullptr ? 1 : 0);
    const auto status = worker->status();
    if (!status) continue;
    for (size_t i = 0; i < families.size(); ++i) {
      add_value(families[i], worker->label().name, worker_figures()[i].value(*status));
    }
    if (status->has_link_idle_share()) add_value(idle, worker->label().name, status->link_idle_share());
  }
  families.push_back(std::move(up));
  families.push_back(std::move(idle));
  return families;
}

}  // namespace

prometheus::Counter& Metrics::counter(const std::string& name, const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add({});
}

prometheus::Histogram& Metrics::seconds(const std::string& name, const std::string& help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_).Add({}, kSeconds);
}

Metrics::Metrics()
    : requests_(prometheus::BuildCounter()
                    .Name("ete_requests_total")
                    .Help("Requests that have ended, by outcome.")
                    .Register(registry_)),
      running_(prometheus::BuildGauge()
                   .Name("ete_requests_running")
                   .Help("Requests that run or wait.")
                   .Register(registry_)
                   .Add({})),
      prompt_tokens_(counter("ete_prompt_tokens_total", "Tokens of prompts.")),
      generated_tokens_(counter("ete_generated_tokens_total", "Tokens that were generated.")),
      reused_tokens_(
          counter("ete_reused_tokens_total", "Tokens of prompts that were found in a worker's cache.")),
      resumed_(counter("ete_requests_resumed_total", "Times that a request went on at another worker.")),
      refused_(counter("ete_calls_refused_total", "Calls and connections that were turned away.")),
      first_token_(seconds("ete_time_to_first_token_seconds", "From a request to its first token.")),
      next_token_(seconds("ete_inter_token_seconds", "From one token of a request to the next.")),
      queue_(seconds("ete_queue_seconds", "Of a request in its worker's queue.")),
      request_(seconds("ete_request_seconds", "From a request to its end.")) {
  requests_.Add({{"outcome", "ok"}});
}

void Metrics::request_begun() { running_.Increment(); }

void Metrics::request_ended(std::optional<FrontErrorCode> error, double seconds) {
  running_.Decrement();
  requests_.Add({{"outcome", error ? name_of(*error) : "ok"}}).Increment();
  request_.Observe(seconds);
}

std::string Metrics::text(const WorkerPool& workers) const {
  std::vector<MetricFamily> families = registry_.Collect();
  std::vector<MetricFamily> of_workers = worker_families(workers);
  std::move(of_workers.begin(), of_workers.end(), std::back_inserter(families));
  families.push_back(
      {"ete_front_host_bytes", "Bytes of RAM that this process occupies.", MetricType::Gauge, {}});
  prometheus::ClientMetric memory;
  memory.gauge.value = static_cast<double>(service::resident_set_bytes());
  families.back().metric.push_back(std::move(memory));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace ete::front
