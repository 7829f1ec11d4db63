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

std::optional<milliseconds> pushback(const grpc::ClientContext& context) {
  // gRPC's own name for it (gRFC A6). Below 0: do not try again.
  const auto& trailer = context.GetServerTrailingMetadata();
  const auto found = trailer.find("grpc-retry-pushback-ms");
  if (found == trailer.end()) return std::nullopt;
  const std::string_view text(found->second.data(), found->second.size());
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) value = -1;  // as gRFC A6 has it
  return milliseconds(value);
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
  if (!status.ok()) throw Error(status.error_code(), status.error_message(), pushback(*context_));
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
