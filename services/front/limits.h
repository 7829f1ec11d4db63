#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ete::front {

// What one client may ask of the front; generation.proto tells clients.

// A message. Prompts of a quarter of a million ids, or of 4 MiB of text, fit.
constexpr int kMostMessageBytes = 4 << 20;
constexpr int kMostStreamsPerConnection = 128;
// That run or wait at one front, over all connections (--max-requests).
constexpr int kMostRequests = 1024;
// gRPC's buffers for all connections together; past it, calls are refused.
constexpr size_t kMostBufferBytes = size_t{512} << 20;
constexpr size_t kMostTokenizeBytes = size_t{1} << 20;
// What Tokenize gives for a text of that size can be given back, special tokens around it included.
constexpr int kMostDetokenizeIds = (1 << 20) + 64;
constexpr size_t kMostDetokenizedBytes = size_t{4} << 20;  // what gRPC's clients take by default
// A client that has not read for this long, while what it asked for waits, loses its session; after as long
// again the call.
constexpr std::chrono::seconds kMostUnread{30};

// Of a generation's numbers.
constexpr int32_t kMostLogprobs = 1024;
constexpr int32_t kMostDryRange = 65'536;
constexpr int32_t kBestPriority = -10;
constexpr int32_t kLastPriority = 10;
constexpr int32_t kMostDrafts = 63;

}  // namespace ete::front
