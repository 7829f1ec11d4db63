#include "clients/cli/prefill_progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "clients/cli/progress_bar.h"
#include "clients/cli/server_client.h"

namespace ete::cli {
namespace {

constexpr std::chrono::milliseconds kInterval{250};
constexpr int64_t kLeastPositions = 128;  // fewer are done before anybody has read the line

}  // namespace

PrefillProgress::PrefillProgress(std::string worker)
    : worker_(isatty(STDERR_FILENO) == 1 ? std::move(worker) : "") {
  if (worker_.empty()) return;
  if (const auto status = worker_status(worker_)) rows_before_ = static_cast<int64_t>(status->prefill_rows());
}

PrefillProgress::~PrefillProgress() { end(); }

void PrefillProgress::begin(int64_t positions) {
  if (worker_.empty() || positions < kLeastPositions || thread_.joinable()) return;
  thread_ = std::thread([this, positions] { watch(positions); });
}

void PrefillProgress::end() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

bool PrefillProgress::pause() {
  std::unique_lock lock(mutex_);
  return !ended_changed_.wait_for(lock, kInterval, [this] { return ended_; });
}

void PrefillProgress::watch(int64_t positions) {
  ProgressBar bar;
  while (pause()) {
    const auto status = worker_status(worker_);
    if (!status) continue;
    const int64_t rows = static_cast<int64_t>(status->prefill_rows()) - rows_before_;
    bar.draw(static_cast<double>(std::max<int64_t>(0, rows)) / static_cast<double>(positions),
             "of a prompt of " + std::to_string(positions) + " tokens");
  }
}

}  // namespace ete::cli
