#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "engine/device/device.h"
#include "engine/ops/cpu/cpu_ops.h"
#include "engine/ops/cuda/argument_ring.h"

namespace ete {

// Ops::reduce_logits on a CUDA device. The device reduces rows of which a few ids are wanted, and only what
// is asked for crosses the link; a row that is wanted whole, or of which very many ids are, goes to host
// threads. Either way the same ids and logits; logsumexp agrees to what LogitsRow states. Which way a row
// goes depends on what is wanted of it alone. Engine thread.
class LogitsReducer {
 public:
  // Device memory until the next launch that takes it.
  using Workspace = std::function<std::byte*(size_t bytes)>;

  LogitsReducer(Device& device, ArgumentRing& ring, CpuOps& host)
      : device_(device), ring_(ring), host_(host) {}

  // Of the workspace that one row takes at most.
  static size_t workspace_bytes(int64_t vocab);

  // Arguments as of Ops::reduce_logits, checked.
  struct Call {
    const float* logits = nullptr;  // [wanted, stride]
    int64_t stride = 0;
    int64_t vocab = 0;
    std::vector<LogitsWanted> wanted;
    std::vector<LogitsRow*> results;
  };
  // room: bytes of workspace to be had without more memory.
  void reduce(Stream& stream, const Call& call, size_t room, const Workspace& workspace);

 private:
  struct Batch;
  void by_device(Stream& stream, const Call& call, std::span<const size_t> rows, const Workspace& workspace);
  void by_host(Stream& stream, const Call& call, std::span<const size_t> rows);
  static std::byte* grown(Device& device, Stream& stream, size_t bytes, Buffer* buffer);

  Device& device_;
  ArgumentRing& ring_;
  CpuOps& host_;
  Buffer logits_;   // pinned: rows for host threads
  Buffer results_;  // pinned: what kernels found
};

}  // namespace ete
