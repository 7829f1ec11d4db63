#include "engine/device/cuda/cuda_device.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "engine/base/check.h"
#include "engine/device/cuda/cuda_check.h"
#include "engine/device/cuda/cuda_pacer.h"
#include "engine/device/cuda/cuda_stream.h"
#include "engine/device/host_pages.h"

namespace ete {

void cuda_failed(const char* file, int line, const char* call, cudaError_t error) {
  const ErrorCode code =
      error == cudaErrorMemoryAllocation ? ErrorCode::resource_exhausted : ErrorCode::internal;
  throw Error(code, std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                        cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

namespace {

// What work of host_async threw. CUDA's callback thread must not unwind, so the stream carries it to
// synchronize().
class HostError {
 public:
  void keep(std::exception_ptr error) {
    std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  bool is_set() {
    std::lock_guard lock(mutex_);
    return error_ != nullptr;
  }
  std::exception_ptr take() {
    std::lock_guard lock(mutex_);
    return std::exchange(error_, nullptr);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

class CudaStream final : public Stream {
 public:
  explicit CudaStream(int ordinal) : ordinal_(ordinal) {
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaStream() override {
    // Work in flight may still use host_error_; a failed device says so at its next checked call.
    (void)cudaStreamSynchronize(stream_);
    (void)cudaStreamDestroy(stream_);
  }
  void synchronize() override {
    CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (std::exception_ptr error = host_error_.take()) std::rethrow_exception(error);
  }
  void rethrow_error() override {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state != cudaErrorNotReady) CUDA_CHECK(state);
    if (std::exception_ptr error = host_error_.take()) std::rethrow_exception(error);
  }
  cudaStream_t get() const { return stream_; }
  int ordinal() const { return ordinal_; }
  HostError& host_error() { return host_error_; }

 private:
  int ordinal_;
  cudaStream_t stream_ = nullptr;
  HostError host_error_;
};

CudaStream& as_cuda_stream(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  CHECK(cuda != nullptr, "a stream of another device");
  return *cuda;
}

class CudaEvent final : public Event {
 public:
  CudaEvent() { CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~CudaEvent() override { (void)cudaEventDestroy(event_); }
  void record(Stream& stream) override { CUDA_CHECK(cudaEventRecord(event_, as_cuda_stream(stream).get())); }
  void wait(Stream& stream) override {
    CUDA_CHECK(cudaStreamWaitEvent(as_cuda_stream(stream).get(), event_, 0));
  }
  void synchronize() override { CUDA_CHECK(cudaEventSynchronize(event_)); }

 private:
  cudaEvent_t event_ = nullptr;
};

struct HostCall {
  std::function<void()> work;
  HostError* error;
};

void run_host_call(void* data) {
  const std::unique_ptr<HostCall> call(static_cast<HostCall*>(data));
  if (call->error->is_set()) return;
  try {
    call->work();
  } catch (...) {
    call->error->keep(std::current_exception());
  }
}

// Memory of one device. Giving memory back to the runtime waits for everything under way on the device,
// copies of the next pass too, so what is released is kept for the next request of the same size, and given
// back when a request fails. Any thread; buffers may outlive the device.
class Memory {
 public:
  ~Memory() { give_back(); }

  // Others are allocated meanwhile.
  cudaError_t pin(const std::byte* data) {
    const size_t bytes = plain_bytes(data);
    const cudaError_t result = cudaHostRegister(const_cast<std::byte*>(data), bytes, cudaHostRegisterDefault);
    if (result != cudaSuccess) return result;
    std::lock_guard lock(mutex_);
    plain_.at(data).pinned = true;
    return result;
  }
  void add_plain(const std::byte* data, size_t bytes) {
    std::lock_guard lock(mutex_);
    plain_[data] = {.bytes = bytes};
  }
  void release_plain(std::byte* data) {
    std::lock_guard lock(mutex_);
    const auto plain = plain_.extract(data).mapped();
    if (plain.pinned) (void)cudaHostUnregister(data);
    unmap_host_pages(data, plain.bytes);
  }

  cudaError_t take(size_t bytes, MemorySpace space, void** data) {
    if (take_kept(bytes, space, data)) return cudaSuccess;
    const cudaError_t result = allocate(bytes, space, data);
    if (result == cudaSuccess || !give_back()) return result;
    (void)cudaGetLastError();  // an allocation that failed is not sticky, but stays as "last error"
    return allocate(bytes, space, data);
  }
  void release(size_t bytes, MemorySpace space, void* data) {
    if (space == MemorySpace::device) device_bytes_ -= bytes;
    std::lock_guard lock(mutex_);
    kept_[{space, bytes}].push_back(data);
  }
  // False: there was nothing to give.
  bool give_back() {
    std::lock_guard lock(mutex_);
    bool any = false;
    for (const auto& [key, blocks] : kept_) {
      for (void* block : blocks) {
        (void)(key.first == MemorySpace::host ? cudaFreeHost(block) : cudaFree(block));
        any = true;
      }
    }
    kept_.clear();
    return any;
  }
  size_t device_bytes() const { return device_bytes_; }

 private:
  bool take_kept(size_t bytes, MemorySpace space, void** data) {
    std::lock_guard lock(mutex_);
    const auto found = kept_.find({space, bytes});
    if (found == kept_.end() || found->second.empty()) return false;
    *data = found->second.back();
    found->second.pop_back();
    if (space == MemorySpace::device) device_bytes_ += bytes;
    return true;
  }
  cudaError_t allocate(size_t bytes, MemorySpace space, void** data) {
    if (space == MemorySpace::host) return cudaHostAlloc(data, bytes, cudaHostAllocDefault);
    const cudaError_t result = cudaMalloc(data, bytes);
    if (result == cudaSuccess) device_bytes_ += bytes;
    return result;
  }

  // MemorySpace::plain, which is not kept.
  struct Plain {
    size_t bytes = 0;
    bool pinned = false;
  };
  size_t plain_bytes(const std::byte* data) {
    std::lock_guard lock(mutex_);
    const auto plain = plain_.find(data);
    CHECK(plain != plain_.end(), "no memory of MemorySpace::plain");
    return plain->second.bytes;
  }

  std::atomic<size_t> device_bytes_{0};  // handed out
  std::mutex mutex_;
  std::map<std::pair<MemorySpace, size_t>, std::vector<void*>> kept_;
  std::map<const std::byte*, Plain> plain_;
};

// What the kernels are compiled for.
constexpr int kLeastCapability = 75;

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {
    make_current();
    CUDA_CHECK(cudaGetDeviceProperties(&properties_, ordinal));
    if (10 * properties_.major + properties_.minor < kLeastCapability) {
      throw Error(ErrorCode::unavailable, std::string(properties_.name) + " is " + capability() +
                                              "; the least that kernels are compiled for is sm_" +
                                              std::to_string(kLeastCapability));
    }
    CUDA_CHECK(cudaFree(nullptr));  // creates the context now, so that a GPU that does not work says so here
  }

  DeviceInfo info() const override {
    DeviceInfo info;
    info.kind = DeviceKind::cuda;
    info.ordinal = ordinal_;
    info.name = properties_.name;
    info.capability = capability();
    make_current();
    CUDA_CHECK(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
    return info;
  }

  std::unique_ptr<Stream> create_stream(const std::string&) override {
    make_current();
    return std::make_unique<CudaStream>(ordinal_);
  }
  std::unique_ptr<Event> create_event() override {
    make_current();
    return std::make_unique<CudaEvent>();
  }

  Buffer allocate(size_t bytes, MemorySpace space) override {
    if (bytes == 0) return {};
    make_current();
    if (space == MemorySpace::plain) return allocate_plain(bytes);
    void* data = nullptr;
    refuse_unless(memory_->take(bytes, space, &data), bytes,
                  space == MemorySpace::host ? "pinned host memory" : "device memory");
    return Buffer(
        static_cast<std::byte*>(data), bytes,
        [memory = memory_, bytes, space](std::byte* released) { memory->release(bytes, space, released); });
  }

  bool pin(const std::byte* data, std::string* why) override {
    make_current();
    const cudaError_t result = memory_->pin(data);
    if (result == cudaSuccess) return true;
    (void)cudaGetLastError();
    *why = cudaGetErrorString(result);
    return false;
  }

  void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) override {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, as_cuda_stream(stream).get()));
  }

  void copy_rows_async(Stream& stream, void* dst, const void* src, size_t pitch, size_t bytes,
                       size_t rows) override {
    CUDA_CHECK(cudaMemcpy2DAsync(dst, pitch, src, pitch, bytes, rows, cudaMemcpyDefault,
                                 as_cuda_stream(stream).get()));
  }

  void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) override {
    CUDA_CHECK(cudaMemsetAsync(dst, std::to_integer<int>(value), bytes, cuda_stream_of(stream)));
  }

  void host_async(Stream& stream, std::function<void()> work) override {
    CudaStream& cuda = as_cuda_stream(stream);
    auto call = std::make_unique<HostCall>(HostCall{std::move(work), &cuda.host_error()});
    CUDA_CHECK(cudaLaunchHostFunc(cuda.get(), run_host_call, call.get()));
    (void)call.release();  // run_host_call owns it
  }

  std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) override {
    return make_cuda_pacer(*this, bytes_per_second);
  }

  void trim() override { (void)memory_->give_back(); }

  size_t allocated_bytes() const override { return memory_->device_bytes(); }

 private:
  // The runtime's current device is the calling thread's own.
  void make_current() const { CUDA_CHECK(cudaSetDevice(ordinal_)); }

  std::string capability() const {
    return "sm_" + std::to_string(properties_.major) + std::to_string(properties_.minor);
  }

  void refuse_unless(cudaError_t result, size_t bytes, const char* what) const {
    if (result == cudaSuccess) return;
    (void)cudaGetLastError();  // an allocation that failed is not sticky, but stays as "last error"
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    throw Error(ErrorCode::resource_exhausted, "cuda:" + std::to_string(ordinal_) + ": " +
                                                   std::to_string(bytes) + " bytes of " + what + ": " +
                                                   cudaGetErrorString(result) +
                                                   "; device memory free: " + std::to_string(free_bytes));
  }

  Buffer allocate_plain(size_t bytes) {
    std::byte* data = map_host_pages(bytes);
    if (data == nullptr) {
      throw Error(ErrorCode::resource_exhausted,
                  "RAM: the system refused " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    }
    memory_->add_plain(data, bytes);
    return Buffer(data, bytes, [memory = memory_](std::byte* released) { memory->release_plain(released); });
  }

  int ordinal_;
  cudaDeviceProp properties_{};
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
};

int cuda_device_count() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorNoDevice) return 0;
  // No driver, or one too old: for the user to mend, so without our place in the source.
  if (result != cudaSuccess) {
    throw Error(ErrorCode::unavailable, std::string("no GPU can be used: ") + cudaGetErrorString(result));
  }
  return count;
}

}  // namespace

cudaStream_t cuda_stream_of(Stream& stream) {
  const CudaStream& cuda = as_cuda_stream(stream);
  CUDA_CHECK(cudaSetDevice(cuda.ordinal()));
  return cuda.get();
}

std::unique_ptr<Device> make_cuda_device(int ordinal) {
  const std::string name = "cuda:" + std::to_string(ordinal);
  try {
    const int count = cuda_device_count();
    if (ordinal < count) return std::make_unique<CudaDevice>(ordinal);
    throw Error(ErrorCode::unavailable, std::to_string(count) + " GPUs here");
  } catch (const Error& error) {
    throw Error(ErrorCode::unavailable, "device: " + name + ": " + error.what());
  }
}

std::vector<std::pair<std::string, std::string>> list_cuda_devices() {
  std::vector<std::pair<std::string, std::string>> devices;
  try {
    const int count = cuda_device_count();
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      std::string status = "ok";
      try {
        make_cuda_device(ordinal);
      } catch (const Error& error) {
        status = error.what();
      }
      devices.emplace_back("cuda:" + std::to_string(ordinal), status);
    }
    if (count == 0) devices.emplace_back("cuda", "no GPU here");
  } catch (const Error& error) {
    devices.emplace_back("cuda", error.what());
  }
  return devices;
}

}  // namespace ete
