#include <utility>

#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_pacer.h"
#include "engine/device/cuda/cuda_stream.h"

namespace ete {

namespace {

constexpr unsigned kNapNanoseconds = 2000;

__device__ inline unsigned long long now_ns() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void begin_kernel(unsigned long long* started) { *started = max(*started, now_ns()); }

__global__ void end_kernel(unsigned long long* started, unsigned long long nanoseconds) {
  const unsigned long long due = *started + nanoseconds;
  *started = due;
  while (now_ns() < due) __nanosleep(kNapNanoseconds);
}

class CudaPacer final : public LinkPacer {
 public:
  CudaPacer(Device& device, uint64_t bytes_per_second)
      : device_(device),
        rate_(static_cast<double>(bytes_per_second)),
        started_(device.allocate(sizeof(unsigned long long), MemorySpace::device)) {}

  void begin(Stream& stream) override {
    if (!std::exchange(is_set_, true))
      device_.fill_async(stream, started_.data(), std::byte{0}, started_.size());
    begin_kernel<<<1, 1, 0, cuda_stream_of(stream)>>>(started_.as<unsigned long long>());
    CUDA_CHECK(cudaGetLastError());
  }
  void end(Stream& stream, size_t bytes) override {
    const double nanoseconds = static_cast<double>(bytes) / rate_ * 1e9;
    end_kernel<<<1, 1, 0, cuda_stream_of(stream)>>>(started_.as<unsigned long long>(),
                                                    static_cast<unsigned long long>(nanoseconds));
    CUDA_CHECK(cudaGetLastError());
  }

 private:
  Device& device_;
  double rate_;
  Buffer started_;  // when the last copy ended, in nanoseconds of the device's clock
  bool is_set_ = false;
};

}  // namespace

std::unique_ptr<LinkPacer> make_cuda_pacer(Device& device, uint64_t bytes_per_second) {
  return std::make_unique<CudaPacer>(device, bytes_per_second);
}

}  // namespace ete
