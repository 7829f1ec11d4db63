#include <algorithm>
#include <charconv>
#include <cmath>
#include <random>
#include <string_view>
#include <utility>

#include "client_impl.h"

namespace ete::client {
namespace {

using std::chrono::milliseconds;

// Empty: no number, or of more than a day.
std::optional<milliseconds> parse_milliseconds(std::string_view text) {
  constexpr milliseconds kMost = std::chrono::hours(24);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || milliseconds(value) > kMost) {
    return std::nullopt;
  }
  return milliseconds(value);
}

// What the server tells and, before it, what proxies do (gRFC A6): below 0, or no number, is not to try
// again.
std::optional<milliseconds> retry_delay(const grpc::ClientContext& context) {
  const auto& trailer = context.GetServerTrailingMetadata();
  const auto text = [](const grpc::string_ref& value) {
    return std::string_view(value.data(), value.size());
  };
  if (const auto found = trailer.find("grpc-retry-pushback-ms"); found != trailer.end()) {
    return parse_milliseconds(text(found->second)).value_or(milliseconds(-1));
  }
  const auto found = trailer.find("retry-after-ms");
  const auto delay = found == trailer.end() ? std::nullopt : parse_milliseconds(text(found->second));
  return delay && delay->count() >= 0 ? delay : std::nullopt;
}

// After attempt 1, 2, ... ended with `error`; empty: it stands.
std::optional<milliseconds> delay_after(const Retry& retry, const Error& error, int attempt) {
  if (attempt >= retry.attempts) return std::nullopt;
  if (error.retry_delay()) {
    return error.retry_delay()->count() < 0 ? std::nullopt : error.retry_delay();
  }
  if (error.code() != grpc::UNAVAILABLE) return std::nullopt;
  constexpr int kMostDoublings = 30;  // past them the maximum has long been reached
  const double doubled =
      std::ldexp(static_cast<double>(retry.initial.count()), std::min(attempt - 1, kMostDoublings));
  std::random_device device;
  const double jitter = std::uniform_real_distribution<double>(0.8, 1.2)(device);
  return milliseconds(std::llround(std::min(static_cast<double>(retry.maximum.count()), doubled) * jitter));
}

}  // namespace

Stream::Impl::~Impl() {
  if (!reader_) return;
  context_->TryCancel();
  reader_->Finish();
}

std::optional<v1::Piece> Stream::Impl::next() {
  while (true) {
    try {
      if (!reader_) start();
      v1::GenerateReply reply;
      while (reader_->Read(&reply)) {
        if (reply.has_prompt()) {
          prompt_ = std::move(*reply.mutable_prompt());
        } else if (reply.has_finish()) {
          finish_ = std::move(*reply.mutable_finish());
        } else if (reply.has_progress() && on_progress_) {
          on_progress_(reply.progress());
        } else if (reply.has_piece()) {
          handed_out_ = true;
          return std::move(*reply.mutable_piece());
        }
      }
      end();
      return std::nullopt;
    } catch (const Error& error) {
      try_again(error);
    }
  }
}

void Stream::Impl::cancel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = true;
  if (context_) context_->TryCancel();
  woken_.notify_all();
}

void Stream::Impl::start() {
  auto context = std::make_unique<grpc::ClientContext>();
  if (deadline_) context->set_deadline(*deadline_);
  if (client_.options().token) context->AddMetadata("authorization", "Bearer " + *client_.options().token);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cancelled_) throw Error(grpc::CANCELLED, "cancelled by this client", std::nullopt);
  ++attempt_;
  context_ = std::move(context);
  reader_ = client_.stub().Generate(context_.get(), request_);
}

void Stream::Impl::end() {
  const grpc::Status status = reader_->Finish();
  reader_.reset();
  if (!status.ok()) throw Error(status.error_code(), status.error_message(), retry_delay(*context_));
}

void Stream::Impl::try_again(const Error& error) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto delay =
      handed_out_ || cancelled_ ? std::nullopt : delay_after(client_.options().retry, error, attempt_);
  if (!delay || (deadline_ && std::chrono::system_clock::now() + *delay >= *deadline_)) throw error;
  lock.unlock();
  if (client_.options().on_retry) client_.options().on_retry(error, attempt_, *delay);
  lock.lock();
  // When it is cancelled meanwhile the next start says so.
  woken_.wait_for(lock, *delay, [this] { return cancelled_; });
}

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::Stream(Stream&& other) noexcept = default;
Stream::~Stream() = default;
std::optional<v1::Piece> Stream::next() { return impl_->next(); }
void Stream::cancel() { impl_->cancel(); }
const v1::PromptInfo& Stream::prompt() const { return impl_->prompt(); }
const v1::Finish& Stream::finish() const { return impl_->finish(); }

}  // namespace ete::client
