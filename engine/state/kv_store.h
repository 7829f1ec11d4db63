#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/device/device.h"
#include "engine/ops/ops.h"

namespace ete {

class KvStore;

struct KvOptions {
  KvLayout layout;
  int64_t layers = 0;
  MemorySpace space = MemorySpace::device;
  uint64_t budget_bytes = 0;  // all sessions together
};

// One session's keys and values. A page holds 512 positions of every layer: layer i's part, K then V
// (KvLayout), at i * page_bytes. Pages may be shared with forks until one of them writes. Move-only; engine
// thread; the store must outlive it. Nothing on the device may still use the pages when they are dropped.
class SessionKv {
 public:
  SessionKv() = default;
  SessionKv(SessionKv&&) noexcept = default;
  SessionKv& operator=(SessionKv&&) noexcept = default;
  SessionKv(const SessionKv&) = delete;
  SessionKv& operator=(const SessionKv&) = delete;

  int64_t page_count() const { return static_cast<int64_t>(pages_.size()); }
  // Where page p begins, layer 0 first; layer i's part is i * page_bytes further.
  std::byte* page(int64_t index) const { return pages_[static_cast<size_t>(index)]->buffer.data(); }

 private:
  friend class KvStore;
  struct Page {
    Page(KvStore& owner, Buffer memory);
    ~Page();
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;
    KvStore& store;
    Buffer buffer;
  };
  std::vector<std::shared_ptr<Page>> pages_;
};

// Keys and values of all sessions within one budget. Engine thread.
class KvStore {
 public:
  KvStore(Device& device, const KvOptions& options);

  const KvLayout& layout() const { return options_.layout; }
  size_t page_bytes() const { return page_bytes_; }  // of one layer
  uint64_t bytes_per_token() const;
  uint64_t bytes_for(int64_t positions) const;  // whole pages of all layers
  uint64_t used_bytes() const { return used_bytes_; }
  uint64_t budget_bytes() const { return options_.budget_bytes; }

  // Makes positions [from, to) writable: adds pages up to `to`, copies pages of that range that are shared
  // (now, on the calling thread: no work that uses them may be under way). Error(resource_exhausted) with the
  // figures, the session's pages as they were.
  void reserve(SessionKv& kv, int64_t from, int64_t to);
  // Error(resource_exhausted) when a session that holds `held` positions could not grow to `to` now.
  void check_room(int64_t held, int64_t to) const;
  // Drops every page past the first `length` positions.
  void truncate(SessionKv& kv, int64_t length) const;
  // A session that shares the pages of the first `length` positions.
  SessionKv fork(const SessionKv& kv, int64_t length) const;

 private:
  friend struct SessionKv::Page;
  std::shared_ptr<SessionKv::Page> make_page();
  std::shared_ptr<SessionKv::Page> copy_page(const SessionKv::Page& page);

  Device& device_;
  KvOptions options_;
  size_t page_bytes_;
  size_t span_bytes_;  // a page of all layers
  uint64_t used_bytes_ = 0;
  std::unique_ptr<Stream> copy_;  // for pages that are copied on write
};

}  // namespace ete
