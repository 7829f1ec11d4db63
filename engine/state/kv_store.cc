#include "engine/state/kv_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"

namespace ete {

namespace {

int64_t pages_for(int64_t positions) { return (positions + kKvTile - 1) / kKvTile; }

}  // namespace

SessionKv::Page::Page(KvStore& owner, Buffer memory) : store(owner), buffer(std::move(memory)) {
  store.used_bytes_ += buffer.size();
}

SessionKv::Page::~Page() { store.used_bytes_ -= buffer.size(); }

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

void KvStore::check_room(int64_t held, int64_t to) const {
  const uint64_t more = bytes_for(to) - std::min(bytes_for(held), bytes_for(to));
  const uint64_t left = options_.budget_bytes - std::min(used_bytes_, options_.budget_bytes);
  if (more <= left) return;
  const auto fits = pages_for(held) + static_cast<int64_t>(left / span_bytes_);
  throw Error(ErrorCode::resource_exhausted,
              "KV cache: " + std::to_string(to) + " positions need " + std::to_string(more) +
                  " more bytes, " + std::to_string(left) + " of " + std::to_string(options_.budget_bytes) +
                  " are left: " + std::to_string(fits * kKvTile) + " positions would fit now");
}

std::shared_ptr<SessionKv::Page> KvStore::make_page() {
  return std::make_shared<SessionKv::Page>(*this, device_.allocate(span_bytes_, options_.space));
}

std::shared_ptr<SessionKv::Page> KvStore::copy_page(const SessionKv::Page& page) {
  auto copy = make_page();
  device_.copy_async(*copy_, copy->buffer.data(), page.buffer.data(), span_bytes_);
  return copy;
}

void KvStore::reserve(SessionKv& kv, int64_t from, int64_t to) {
  if (to <= from) return;
  std::vector<std::shared_ptr<SessionKv::Page>> pages = kv.pages_;
  const auto first = static_cast<size_t>(from / kKvTile);
  const auto end = static_cast<size_t>(pages_for(to));
  CHECK(first <= pages.size(), "a gap in the KV cache");
  uint64_t copies = 0;
  // `pages` itself holds one reference to every page.
  for (size_t i = first; i < std::min(end, pages.size()); ++i) copies += pages[i].use_count() > 2 ? 1 : 0;
  const auto held = static_cast<int64_t>(pages.size()) * kKvTile;
  check_room(held, std::max(held, to) + static_cast<int64_t>(copies) * kKvTile);
  if (end <= pages.size() && copies == 0) return;
  for (size_t i = first; i < std::min(end, pages.size()); ++i) {
    if (pages[i].use_count() > 2) pages[i] = copy_page(*pages[i]);
  }
  while (pages.size() < end) pages.push_back(make_page());
  if (copies > 0) copy_->synchronize();
  kv.pages_ = std::move(pages);
}

void KvStore::truncate(SessionKv& kv, int64_t length) const {
  const auto keep = static_cast<size_t>(pages_for(length));
  if (keep < kv.pages_.size()) kv.pages_.resize(keep);
}

SessionKv KvStore::fork(const SessionKv& kv, int64_t length) const {
  const auto keep = static_cast<size_t>(pages_for(length));
  CHECK(keep <= kv.pages_.size(), std::to_string(length));
  SessionKv copy;
  copy.pages_.assign(kv.pages_.begin(), kv.pages_.begin() + static_cast<ptrdiff_t>(keep));
  return copy;
}

}  // namespace ete
