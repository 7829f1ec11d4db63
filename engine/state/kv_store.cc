#include "engine/state/kv_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace ete {

namespace {

int64_t pages_for(int64_t positions) { return (positions + kKvTile - 1) / kKvTile; }

}  // namespace

KvPage::Memory::Memory(KvStore& owner, Buffer bytes) : store(owner), buffer(std::move(bytes)) {
  store.used_bytes_ += buffer.size();
}

KvPage::Memory::~Memory() { store.used_bytes_ -= buffer.size(); }

KvStore::KvStore(Device& device, const KvOptions& options)
    : device_(device),
      options_(options),
      page_bytes_(options.layout.page_bytes()),
      span_bytes_(page_bytes_ * static_cast<size_t>(options.layers)),
      copy_(device.create_stream("kv copy")) {}

uint64_t KvStore::bytes_per_token() const { return span_bytes_ / static_cast<uint64_t>(kKvTile); }

uint64_t KvStore::bytes_for(int64_t positions) const {
  return static_cast<uint64_t>(pages_for(positions)) * span_bytes_;
}

uint64_t KvStore::missing(int64_t held, int64_t to) const {
  const uint64_t more = bytes_for(to) - std::min(bytes_for(held), bytes_for(to));
  const uint64_t left = options_.budget_bytes - std::min(used_bytes_, options_.budget_bytes);
  return more - std::min(more, left);
}

void KvStore::check_room(int64_t held, int64_t to) const {
  if (missing(held, to) == 0) return;
  const uint64_t more = bytes_for(to) - bytes_for(held);
  const uint64_t left = options_.budget_bytes - std::min(used_bytes_, options_.budget_bytes);
  const auto fits = pages_for(held) + static_cast<int64_t>(left / span_bytes_);
  throw Error(ErrorCode::resource_exhausted,
              "KV cache: " + std::to_string(to) + " positions need " + std::to_string(more) +
                  " more bytes, " + std::to_string(left) + " of " + std::to_string(options_.budget_bytes) +
                  " are left: " + std::to_string(fits * kKvTile) + " positions would fit now");
}

KvPage KvStore::make_page() {
  return KvPage(std::make_shared<KvPage::Memory>(*this, device_.allocate(span_bytes_, options_.space)));
}

KvPage KvStore::copy_page(const KvPage& page) {
  KvPage copy = make_page();
  device_.copy_async(*copy_, copy.data(), page.data(), span_bytes_);
  return copy;
}

// The one writer of a shared page goes on behind what the others rely on.
bool KvStore::must_copy(const SessionKv::Held& held, int64_t first_written) {
  return held.page.is_shared() && (!held.writes || first_written < held.page.memory_->shared_until);
}

void KvStore::reserve(SessionKv& kv, int64_t from, int64_t to) {
  if (to <= from) return;
  const auto first = static_cast<size_t>(from / kKvTile);
  const auto end = static_cast<size_t>(pages_for(to));
  const size_t had = kv.pages_.size();
  CHECK(first <= had, "a gap in the KV cache");
  std::vector<size_t> copied;
  for (size_t i = first; i < std::min(end, had); ++i) {
    if (must_copy(kv.pages_[i], from - static_cast<int64_t>(i) * kKvTile)) copied.push_back(i);
  }
  const auto held = static_cast<int64_t>(had) * kKvTile;
  check_room(held, std::max(held, to) + static_cast<int64_t>(copied.size()) * kKvTile);
  if (!copied.empty() || end > had) {
    std::vector<SessionKv::Held> pages = kv.pages_;
    for (const size_t i : copied) pages[i].page = copy_page(kv.pages_[i].page);
    while (pages.size() < end) pages.push_back({make_page(), true});
    if (!copied.empty()) copy_->synchronize();
    kv.pages_ = std::move(pages);
  }
  for (size_t i = first; i < end; ++i) kv.pages_[i].writes = true;
}

void KvStore::truncate(SessionKv& kv, int64_t length) const {
  const auto keep = static_cast<size_t>(pages_for(length));
  if (keep < kv.pages_.size())
    kv.pages_.erase(kv.pages_.begin() + static_cast<ptrdiff_t>(keep), kv.pages_.end());
}

KvPage KvStore::shared_until(const KvPage& page, int64_t positions) {
  KvPage::Memory& memory = *page.memory_;
  memory.shared_until = std::max(page.is_shared() ? memory.shared_until : 0, positions);
  return page;
}

SessionKv KvStore::fork(const SessionKv& kv, int64_t length) const {
  CHECK(pages_for(length) <= kv.page_count(), std::to_string(length));
  SessionKv copy;
  for (int64_t i = 0; i < pages_for(length); ++i) {
    copy.pages_.push_back({share(kv, i, std::min(length - i * kKvTile, kKvTile)), false});
  }
  return copy;
}

KvPage KvStore::share(const SessionKv& kv, int64_t index, int64_t positions) const {
  CHECK(index < kv.page_count(), std::to_string(index));
  return shared_until(kv.pages_[static_cast<size_t>(index)].page, positions);
}

SessionKv KvStore::from_pages(std::vector<KvPage> pages) const {
  SessionKv kv;
  for (KvPage& page : pages) kv.pages_.push_back({std::move(page), false});
  return kv;
}

}  // namespace ete
