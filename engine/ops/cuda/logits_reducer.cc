#include "engine/ops/cuda/logits_reducer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/device/cuda/cuda_stream.h"
#include "engine/ops/cuda/logits_kernels.h"

namespace ete {

namespace {

constexpr size_t kMostArguments = size_t{256} << 10;  // bytes, of a row and of a launch

// Masks and ids of a row that kernels read.
size_t argument_bytes(const LogitsWanted& wanted) {
  return ArgumentRing::padded(wanted.extra_ids) + ArgumentRing::padded(wanted.allowed_mask);
}

bool goes_to_host(const LogitsWanted& wanted) {
  return wanted.full_row || wanted.top_k > cuda::kMostRanked || argument_bytes(wanted) > kMostArguments;
}

Error not_finite(int64_t id, float logit) {
  return Error(ErrorCode::internal, "id " + std::to_string(id) + " is " + std::to_string(logit));
}

}  // namespace

// A launch's rows, where kernels write what they found in host memory: the parts of each row, the best ids of
// each row, the extra logits.
struct LogitsReducer::Batch {
  std::vector<LogitsWanted> wanted;
  std::vector<LogitsRow*> results;
  int64_t chunks = 0;
  int64_t ranked = 0;
  int64_t extras = 0;
  cuda::LogitsPart* parts = nullptr;  // [rows, chunks]
  cuda::RankedId* ids = nullptr;      // [rows, ranked]
  float* extra_logits = nullptr;      // [extras]

  size_t bytes() const {
    const size_t rows = wanted.size();
    return rows * static_cast<size_t>(chunks) * sizeof(cuda::LogitsPart) +
           rows * static_cast<size_t>(ranked) * sizeof(cuda::RankedId) +
           static_cast<size_t>(extras) * sizeof(float);
  }
  void lay_out(std::byte* memory) {
    const auto rows = static_cast<int64_t>(wanted.size());
    parts = reinterpret_cast<cuda::LogitsPart*>(memory);
    ids = reinterpret_cast<cuda::RankedId*>(parts + rows * chunks);
    extra_logits = reinterpret_cast<float*>(ids + rows * ranked);
  }
  // Parts are folded in ascending order.
  void finish() const {
    const float* extra = extra_logits;
    for (size_t row = 0; row < wanted.size(); ++row) {
      const auto at = static_cast<int64_t>(row);
      finish_row(wanted[row], {parts + at * chunks, static_cast<size_t>(chunks)}, ids + at * ranked, extra,
                 results[row]);
      extra += wanted[row].extra_ids.size();
    }
  }

 private:
  static std::optional<Error> error_of(std::span<const cuda::LogitsPart> found) {
    int64_t allowed = 0;
    for (const cuda::LogitsPart& part : found) {
      if (part.first_nan >= 0) return not_finite(part.first_nan, NAN);
      allowed += part.allowed;
    }
    for (const cuda::LogitsPart& part : found) {
      if (part.first_infinite >= 0) return not_finite(part.first_infinite, INFINITY);
    }
    if (allowed > 0) return std::nullopt;
    return Error(ErrorCode::invalid_argument, "allowed_mask: allows no id; accepted: at least one");
  }
  static void finish_row(const LogitsWanted& wanted, std::span<const cuda::LogitsPart> found,
                         const cuda::RankedId* best, const float* extra, LogitsRow* result) {
    *result = {};
    result->error = error_of(found);
    if (result->error) return;
    float max = -INFINITY;
    for (const cuda::LogitsPart& part : found) max = std::max(max, part.max);
    double sum = 0;
    for (const cuda::LogitsPart& part : found) {
      if (part.sum > 0) sum += part.sum * std::exp((double{part.max} - double{max}) / wanted.temperature);
    }
    result->max_logit = max;
    result->logsumexp = double{max} / wanted.temperature + std::log(sum);
    for (int64_t i = 0; i < wanted.top_k && best[i].id >= 0; ++i) {
      result->top_ids.push_back(best[i].id);
      result->top_logits.push_back(best[i].logit);
    }
    result->extra_logits.assign(extra, extra + wanted.extra_ids.size());
  }
};

size_t LogitsReducer::workspace_bytes(int64_t vocab) {
  return vocab == 0 ? 0 : cuda::logits_scratch_bytes(vocab, std::min(vocab, cuda::kMostRanked));
}

void LogitsReducer::reduce(Stream& stream, const Call& call, size_t room, const Workspace& workspace) {
  std::vector<size_t> at_home;
  std::vector<size_t> batch;
  size_t arguments = 0;
  int64_t ranked = 0;
  const auto flush = [&] {
    if (!batch.empty()) by_device(stream, call, batch, workspace);
    batch.clear();
    arguments = 0;
    ranked = 0;
  };
  for (size_t row = 0; row < call.wanted.size(); ++row) {
    const LogitsWanted& wanted = call.wanted[row];
    if (goes_to_host(wanted)) {
      at_home.push_back(row);
      continue;
    }
    const size_t more = argument_bytes(wanted);
    const size_t scratch =
        (batch.size() + 1) * cuda::logits_scratch_bytes(call.vocab, std::max(ranked, wanted.top_k));
    if (arguments + more > kMostArguments || scratch > room) flush();
    batch.push_back(row);
    arguments += more;
    ranked = std::max(ranked, wanted.top_k);
  }
  flush();
  if (!at_home.empty()) by_host(stream, call, at_home);
}

void LogitsReducer::by_device(Stream& stream, const Call& call, std::span<const size_t> rows,
                              const Workspace& workspace) {
  Batch batch;
  batch.chunks = cuda::chunks_of(call.vocab);
  for (const size_t row : rows) {
    batch.wanted.push_back(call.wanted[row]);
    batch.results.push_back(call.results[row]);
    batch.ranked = std::max(batch.ranked, call.wanted[row].top_k);
    batch.extras += std::ssize(call.wanted[row].extra_ids);
  }
  batch.lay_out(grown(device_, stream, batch.bytes(), &results_));
  std::vector<cuda::LogitsRowView> views(rows.size());
  size_t arguments = ArgumentRing::padded(views);
  for (const LogitsWanted& wanted : batch.wanted) arguments += argument_bytes(wanted);
  ring_.begin(stream, arguments);
  float* extra_logits = batch.extra_logits;
  for (size_t i = 0; i < rows.size(); ++i) {
    const LogitsWanted& wanted = batch.wanted[i];
    const auto at = static_cast<int64_t>(i);
    views[i] = {.logits = call.logits + static_cast<int64_t>(rows[i]) * call.stride,
                .mask = wanted.allowed_mask.empty() ? nullptr : ring_.put(wanted.allowed_mask),
                .extra_ids = ring_.put(wanted.extra_ids),
                .extras = std::ssize(wanted.extra_ids),
                .temperature = wanted.temperature,
                .parts = batch.parts + at * batch.chunks,
                .ranked = batch.ids + at * batch.ranked,
                .extra_logits = extra_logits};
    extra_logits += wanted.extra_ids.size();
  }
  const cuda::LogitsRows launch{
      .rows = ring_.put(views), .count = std::ssize(rows), .vocab = call.vocab, .ranked = batch.ranked};
  std::byte* scratch = workspace(rows.size() * cuda::logits_scratch_bytes(call.vocab, batch.ranked));
  cuda::launch_reduce_logits(cuda_stream_of(stream), launch, scratch);
  device_.host_async(stream, [batch = std::move(batch)] { batch.finish(); });
}

void LogitsReducer::by_host(Stream& stream, const Call& call, std::span<const size_t> rows) {
  const auto row_bytes = static_cast<size_t>(call.vocab) * sizeof(float);
  std::byte* copies = grown(device_, stream, rows.size() * row_bytes, &logits_);
  std::vector<LogitsWanted> wanted;
  std::vector<LogitsRow*> results;
  for (size_t i = 0; i < rows.size(); ++i) {
    device_.copy_async(stream, copies + i * row_bytes,
                       call.logits + static_cast<int64_t>(rows[i]) * call.stride, row_bytes);
    wanted.push_back(call.wanted[rows[i]]);
    results.push_back(call.results[rows[i]]);
  }
  host_.reduce_logits(stream, reinterpret_cast<const float*>(copies), call.vocab, call.vocab,
                      std::move(wanted), std::move(results));
}

// What the calls before wrote there is taken by then: their host work precedes what this one submits.
std::byte* LogitsReducer::grown(Device& device, Stream& stream, size_t bytes, Buffer* buffer) {
  if (buffer->size() < bytes) {
    stream.synchronize();
    *buffer = device.allocate(bytes, MemorySpace::host);
  }
  return buffer->data();
}

}  // namespace ete
