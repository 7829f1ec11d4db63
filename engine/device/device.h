#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

// A device runs work on ordered streams and moves bytes. The CPU device behaves like a GPU: each stream is
// one worker thread with a queue, copies are asynchronous, and only events order one stream against another.
// So the same overlap code runs, and is tested, without a GPU. Streams are always explicit arguments.

namespace ete {

class ThreadPool;  // engine/device/cpu/thread_pool.h

enum class DeviceKind { cpu, cuda };

struct DeviceInfo {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;
  std::string name;                 // "AMD EPYC 7763", "NVIDIA H200"
  std::string capability;           // "avx2", "sm_90"
  size_t total_bytes = 0;           // device memory (RAM on the CPU device)
  size_t free_bytes = 0;            // when asked
  bool shares_host_memory = false;  // true: a host pointer may be used as a device pointer, no copy needed
};

// An ordered queue of work. Work submitted to one stream runs in order; two streams are unordered unless an
// Event orders them. Errors of asynchronous work surface at the next synchronize() as Error: what threw in
// host_async is kept, later work of that stream is skipped until synchronize() has rethrown it; events of the
// stream still complete.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual void
  synchronize() = 0;  // blocks the caller until everything submitted so far is done; rethrows its error
  // Rethrows the error of what is done already, as synchronize() would, without waiting for the rest.
  virtual void rethrow_error() { synchronize(); }
};

// A point in a stream. record() marks "after everything submitted to `stream` so far"; wait() makes later
// work of `stream` wait for the last recorded point. An event never recorded is complete. Re-recording
// replaces the point; a wait already submitted keeps the point that it saw.
class Event {
 public:
  virtual ~Event() = default;
  virtual void record(Stream& stream) = 0;
  virtual void wait(Stream& stream) = 0;
  virtual void synchronize() = 0;  // blocks the caller
};

enum class MemorySpace {
  device,  // where kernels read and write
  host,    // pinned (page-locked) RAM: asynchronous copies need it
  plain,   // RAM that Device::pin() may pin
};

// Owns one allocation; move-only; frees on destruction. 64-byte aligned at least.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::byte* data, size_t bytes, std::function<void(std::byte*)> release)
      : data_(data), bytes_(bytes), release_(std::move(release)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer taken(std::move(other));
    swap(taken);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_ != nullptr) release_(data_);
  }

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::function<void(std::byte*)> release_;
};

// Delays a copy stream so that bytes arrive no faster than over a slower link. What is put between begin()
// and end() takes the time that this link would need for `bytes`, on the stream's own clock.
class LinkPacer {
 public:
  virtual ~LinkPacer() = default;
  virtual void begin(Stream& stream) = 0;
  virtual void end(Stream& stream, size_t bytes) = 0;
};

// Used by the engine thread only, except where a method says otherwise.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceInfo info() const = 0;
  virtual std::unique_ptr<Stream> create_stream(const std::string& name) = 0;  // name shows in debuggers
  virtual std::unique_ptr<Event> create_event() = 0;
  // Throws Error(resource_exhausted) with the figure. Contents are undefined.
  virtual Buffer allocate(size_t bytes, MemorySpace space) = 0;
  // Pins memory of MemorySpace::plain where it is, once it was written: pages are locked faster when they are
  // there. False, and why: the system refuses; the memory stays as it was. Any thread.
  virtual bool pin(const std::byte* data, std::string* why) = 0;
  // dst and src in any space; host memory must be pinned for the copy to overlap. Both stay alive until
  // done.
  virtual void copy_async(Stream& stream, void* dst, const void* src, size_t bytes) = 0;
  // `rows` runs of `bytes`, `pitch` bytes from one to the next on both sides.
  virtual void copy_rows_async(Stream& stream, void* dst, const void* src, size_t pitch, size_t bytes,
                               size_t rows) {
    for (size_t row = 0; row < rows; ++row) {
      copy_async(stream, static_cast<std::byte*>(dst) + row * pitch,
                 static_cast<const std::byte*>(src) + row * pitch, bytes);
    }
  }
  // Sets every byte of device memory at dst.
  virtual void fill_async(Stream& stream, void* dst, std::byte value, size_t bytes) = 0;
  // Runs `work` on a host thread when the stream reaches it. On the CPU device this is how ops are launched.
  virtual void host_async(Stream& stream, std::function<void()> work) = 0;
  // Of one stream; outlives the work that it has submitted. A wait of one stream holds up no other.
  virtual std::unique_ptr<LinkPacer> create_pacer(uint64_t bytes_per_second) = 0;
  // Gives memory that was allocated once and is kept for the next request back to the system; may wait for
  // everything that runs.
  virtual void trim() {}
  // Bytes of MemorySpace::device now allocated.
  virtual size_t allocated_bytes() const = 0;
};

struct DeviceOptions {
  std::string device = "auto";  // auto (the first GPU if it works, else the CPU) | cpu | cuda | cuda:N
  int threads = 0;              // pool size of the CPU device; 0: the machine's cores
};

// The only place that chooses a device. Throws Error(invalid_argument) on an unknown name, Error(unavailable)
// when the named device does not work, saying why.
std::unique_ptr<Device> make_device(const DeviceOptions& options);

// Every device that make_device would accept, working or not: (name, "ok" or why not).
std::vector<std::pair<std::string, std::string>> list_devices();

}  // namespace ete
