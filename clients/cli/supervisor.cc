#include "clients/cli/supervisor.h"

#include <algorithm>
#include <utility>

#include "clients/cli/command.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kFirstDelay{100};
constexpr milliseconds kLongestDelay{5000};
constexpr milliseconds kWindow{10'000};  // of deaths that count, and of readiness that forgives
constexpr size_t kMostDeaths = 5;

}  // namespace

void RestartPolicy::ready(Time now) {
  was_ever_ready_ = true;
  if (!ready_since_) ready_since_ = now;
}

std::optional<RestartPolicy::Time> RestartPolicy::ended(Time now, const ExitStatus& status) {
  deaths_.push_back(now);
  while (now - deaths_.front() > kWindow) deaths_.pop_front();
  if (!was_ever_ready_ && (status.signal == 0 || deaths_.size() >= kMostDeaths)) return std::nullopt;
  if (ready_since_ && now - *ready_since_ >= kWindow) delay_ = milliseconds(0);
  ready_since_.reset();
  const Time restart = now + delay_;
  delay_ = delay_ == milliseconds(0) ? kFirstDelay : std::min(delay_ * 2, kLongestDelay);
  return restart;
}

Supervised::Supervised(std::string name, ChildCommand command)
    : name_(std::move(name)), command_(std::move(command)), child_(Child::start(command_)) {}

std::string Supervised::step() {
  const auto now = steady_clock::now();
  if (!restart_at_) {
    const auto status = child_.poll();
    if (!status) return "";
    restart_at_ = policy_.ended(now, *status);
    if (!restart_at_) {
      // A server says why it fails; one that was asked to stop says nothing.
      if (status->signal == 0 && status->code != 0) throw ToldAlready(status->code);
      throw Error(ErrorCode::unavailable,
                  name_ + " ended with " + describe(*status) + " before it was ready");
    }
    const auto delay = std::chrono::duration_cast<milliseconds>(*restart_at_ - now);
    const std::string when = delay.count() == 0 ? "at once" : "in " + std::to_string(delay.count()) + " ms";
    return name_ + " ended with " + describe(*status) + ", starting it again " + when;
  }
  if (now < *restart_at_) return "";
  child_ = Child::start(command_);
  restart_at_.reset();
  return name_ + " started again, process " + std::to_string(child_.pid());
}

}  // namespace ete::cli
