#include "engine/device/cpu/cpu_device.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "engine/base/error.h"
#include "engine/device/cpu/cpu_features.h"
#include "engine/device/cpu/cpu_stream.h"
#include "engine/device/host_pages.h"

namespace ete {

namespace {

constexpr int kMaxThreads = 1024;
constexpr size_t kAlignment = 64;
constexpr size_t kLeastMapped = size_t{2} << 20;  // of allocations that are pages of their own

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

int pool_size(int threads) {
  if (threads < 0 || threads > kMaxThreads) {
    throw Error(ErrorCode::invalid_argument, "threads: " + std::to_string(threads) +
                                                 "; accepted: 0 (the machine's cores) to " +
                                                 std::to_string(kMaxThreads));
  }
  if (threads > 0) return threads;
  return std::min(default_threads(), kMaxThreads);
}

std::string capability() {
  const CpuFeatures& features = cpu_features();
  if (features.amx) return "amx";
  if (features.vnni) return "vnni";
  if (features.avx512) return "avx512";
  return features.avx2 ? "avx2" : "plain";
}

// Its clock is the stream's: both halves run there only.
class CpuPacer final : public LinkPacer {
 public:
  explicit CpuPacer(uint64_t bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  void begin(Stream& stream) override {
    as_cpu_stream(stream).submit_work([this] { started_ = std::max(started_, Clock::now()); });
  }
  void end(Stream& stream, size_t bytes) override {
    as_cpu_stream(stream).submit_work([this, bytes] {
      started_ += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(static_cast<double>(bytes) / rate_));
      std::this_thread::sleep_until(started_);
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  double rate_;
  Clock::time_point started_{};
};

}  // namespace

CpuDevice::CpuDevice(int threads) : pool_(pool_size(threads)) {}

DeviceInfo CpuDevice::info() const {
  DeviceInfo info;
  info.kind = DeviceKind::cpu;
  info.name = cpu_name();
  info.capability = capability();
  info.total_bytes = ram_total_bytes();
  info.free_bytes = ram_free_bytes();
  info.shares_host_memory = true;
  return info;
}

std::unique_ptr<Stream> CpuDevice::create_stream(const std::string& name) {
  return std::make_unique<CpuStream>(name);
}

std::unique_ptr<Event> CpuDevice::create_event() { return std::make_unique<CpuEvent>(); }

Buffer CpuDevice::allocate(size_t bytes, MemorySpace space) {
  if (bytes == 0) return {};
  const size_t total = ram_total_bytes();
  const size_t promised = promised_->device + promised_->host;
  const size_t left = total - std::min(total, promised);
  if (bytes > left) {
    throw Error(ErrorCode::resource_exhausted, "RAM: " + std::to_string(bytes) + " bytes asked, " +
                                                   std::to_string(left) + " of " + std::to_string(total) +
                                                   " not yet given out");
  }
  const bool mapped = bytes >= kLeastMapped;
  auto* data = mapped ? map_host_pages(bytes)
                      : static_cast<std::byte*>(std::aligned_alloc(kAlignment, round_up(bytes, kAlignment)));
  if (data == nullptr) {
    throw Error(ErrorCode::resource_exhausted,
                "RAM: the system refused " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
  }
  std::atomic<size_t> Promised::*counter = space == MemorySpace::device ? &Promised::device : &Promised::host;
  (*promised_.*counter) += bytes;
  return Buffer(data, bytes, [promised_now = promised_, counter, bytes, mapped](std::byte* freed) {
    if (mapped) {
      unmap_host_pages(freed, bytes);
    } else {
      std::free(freed);
    }
    (*promised_now.*counter) -= bytes;
  });
}

void CpuDevice::copy_async(Stream& stream, void* dst, const void* src, size_t bytes) {
  as_cpu_stream(stream).submit_work([dst, src, bytes] { std::memcpy(dst, src, bytes); });
}

void CpuDevice::fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) {
  as_cpu_stream(stream).submit_work(
      [dst, value, bytes] { std::memset(dst, std::to_integer<int>(value), bytes); });
}

std::unique_ptr<LinkPacer> CpuDevice::create_pacer(uint64_t bytes_per_second) {
  return std::make_unique<CpuPacer>(bytes_per_second);
}

void CpuDevice::host_async(Stream& stream, std::function<void()> work) {
  as_cpu_stream(stream).submit_work(std::move(work));
}

}  // namespace ete
