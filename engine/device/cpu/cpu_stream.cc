#include "engine/device/cpu/cpu_stream.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/device/cpu/spin.h"

namespace ete {

namespace {
// Bridges the gap between two submissions of a pass; short, because three streams may share two cores.
constexpr std::chrono::microseconds kSpin{20};
constexpr size_t kThreadNameLength = 15;  // the kernel's limit
}  // namespace

CpuStream::CpuStream(const std::string& name) {
  try {
    worker_ = std::thread([this] { worker_loop(); });
  } catch (const std::exception& error) {
    throw Error(ErrorCode::resource_exhausted,
                "stream '" + name + "': no thread can be started for it: " + error.what());
  }
  pthread_setname_np(worker_.native_handle(), name.substr(0, kThreadNameLength).c_str());
}

CpuStream::~CpuStream() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    arrivals_.fetch_add(1, std::memory_order_release);
  }
  submitted_.notify_one();
  worker_.join();
}

void CpuStream::submit(Item item) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(item));
    ++submitted_count_;
    arrivals_.fetch_add(1, std::memory_order_release);
    wake = std::exchange(parked_, false);
  }
  if (wake) submitted_.notify_one();
}

void CpuStream::synchronize() {
  CHECK(std::this_thread::get_id() != worker_.get_id(), "a stream's own work waits for the stream");
  std::unique_lock lock(mutex_);
  const uint64_t target = submitted_count_;
  while (done_count_ < target) {
    wake_at_ = std::min(wake_at_, target);  // again after each waking: it may have been somebody else's turn
    drained_.wait(lock);
  }
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

void CpuStream::rethrow_error() {
  std::lock_guard lock(mutex_);
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

bool CpuStream::take_batch(std::vector<Item>* batch) {
  const uint64_t seen = arrivals_.load(std::memory_order_acquire);
  batch->clear();
  std::unique_lock lock(mutex_);
  if (queue_.empty() && !stopping_) {
    lock.unlock();
    spin_until(kSpin, [&] { return arrivals_.load(std::memory_order_acquire) != seen; });
    lock.lock();
    parked_ = true;
    submitted_.wait(lock, [this] { return !queue_.empty() || stopping_; });
    parked_ = false;
  }
  batch->swap(queue_);
  return !batch->empty();
}

void CpuStream::worker_loop() {
  std::vector<Item> batch;
  while (take_batch(&batch)) {
    for (const Item& item : batch) run(item);
  }
}

void CpuStream::run(const Item& item) {
  std::exception_ptr error;
  if (item.is_mark || !failed()) {
    try {
      item.call();
    } catch (...) {
      error = std::current_exception();
    }
  }
  std::lock_guard lock(mutex_);
  // Moved: this thread's last hold on the exception ends before another may free it.
  if (error) error_ = std::move(error);
  ++done_count_;
  if (done_count_ >= wake_at_) {
    wake_at_ = kNobody;
    drained_.notify_all();
  }
}

bool CpuStream::failed() {
  std::lock_guard lock(mutex_);
  return error_ != nullptr;
}

void CpuEvent::Point::complete() {
  {
    std::lock_guard lock(mutex_);
    complete_ = true;
  }
  changed_.notify_all();
}

void CpuEvent::Point::await() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return complete_; });
}

bool CpuEvent::Point::is_complete() {
  std::lock_guard lock(mutex_);
  return complete_;
}

void CpuEvent::record(Stream& stream) {
  auto point = std::make_shared<Point>();
  as_cpu_stream(stream).submit_mark([point] { point->complete(); });
  point_ = std::move(point);
}

void CpuEvent::wait(Stream& stream) {
  CpuStream& waiter = as_cpu_stream(stream);
  if (!point_ || point_->is_complete()) return;
  waiter.submit_mark([point = point_] { point->await(); });
}

void CpuEvent::synchronize() {
  if (point_) point_->await();
}

CpuStream& as_cpu_stream(Stream& stream) {
  auto* cpu = dynamic_cast<CpuStream*>(&stream);
  CHECK(cpu != nullptr, "a stream of another device");
  return *cpu;
}

}  // namespace ete
