#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
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

// The memory of one page, shared by all who hold a copy of this. A page is 512 positions of every layer:
// layer i's part, K then V (KvLayout), at i * page_bytes. Engine thread; the store must outlive it.
class KvPage {
 public:
  std::byte* data() const { return memory_->buffer.data(); }
  bool is_shared() const { return memory_.use_count() > 1; }

 private:
  friend class KvStore;
  struct Memory {
    Memory(KvStore& owner, Buffer bytes);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    KvStore& store;
    Buffer buffer;
    int64_t shared_until = 0;  // positions of the page that somebody besides its writer relies on
  };
  explicit KvPage(std::shared_ptr<Memory> memory) : memory_(std::move(memory)) {}
  std::shared_ptr<Memory> memory_;
};

// One session's keys and values. Pages may be shared with forks and with a cache of prefixes: who writes
// positions that others rely on, or is not the page's only writer, gets a copy first. Move-only; engine
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
  std::byte* page(int64_t index) const { return pages_[static_cast<size_t>(index)].page.data(); }

 private:
  friend class KvStore;
  struct Held {
    KvPage page;
    bool writes;  // this session's alone to write, past what is shared
  };
  std::vector<Held> pages_;
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

  // Makes positions [from, to) writable: adds pages up to `to`, copies pages of that range that others rely
  // on (now, on the calling thread: no work that uses them may be under way). Error(resource_exhausted) with
  // the figures, the session's pages as they were.
  void reserve(SessionKv& kv, int64_t from, int64_t to);
  // Error(resource_exhausted) when a session that holds `held` positions could not grow to `to` now.
  void check_room(int64_t held, int64_t to) const;
  // How many bytes are lacking for that; 0: none.
  uint64_t missing(int64_t held, int64_t to) const;
  // Drops every page past the first `length` positions.
  void truncate(SessionKv& kv, int64_t length) const;
  // A session that shares the pages of the first `length` positions.
  SessionKv fork(const SessionKv& kv, int64_t length) const;
  // Page `index` of a session, of which the holder relies on the first `positions`.
  KvPage share(const SessionKv& kv, int64_t index, int64_t positions) const;
  // A session whose first pages are these, each shared.
  SessionKv from_pages(std::vector<KvPage> pages) const;

 private:
  friend struct KvPage::Memory;
  KvPage make_page();
  KvPage copy_page(const KvPage& page);
  static KvPage shared_until(const KvPage& page, int64_t positions);
  static bool must_copy(const SessionKv::Held& held, int64_t first_written);

  Device& device_;
  KvOptions options_;
  size_t page_bytes_;
  size_t span_bytes_;  // a page of all layers
  uint64_t used_bytes_ = 0;
  std::unique_ptr<Stream> copy_;  // for pages that are copied on write
};

}  // namespace ete
