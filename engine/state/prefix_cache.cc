#include "engine/state/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/base/check.h"

namespace ete {

namespace {

int64_t common_length(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first - a.begin();
}

uint64_t bytes_of(const PrefixCache::Row& row) { return row->size() * sizeof(float); }

std::span<const int32_t> ids_of_page(std::span<const int32_t> ids, int64_t begin) {
  const auto from = static_cast<size_t>(begin);
  return ids.subspan(from, std::min(ids.size() - from, static_cast<size_t>(kKvTile)));
}

}  // namespace

PrefixCache::PrefixCache(KvStore& kv, RecurrentStore& states, uint64_t limit_bytes)
    : kv_(kv), states_(states), limit_bytes_(limit_bytes) {}

// How many of a block's first `common` positions a session could begin with.
int64_t PrefixCache::usable(const Block& block, int64_t common) const {
  if (states_.empty()) return common;
  const auto after = block.states.upper_bound(common);
  return after == block.states.begin() ? 0 : std::prev(after)->first;
}

PrefixCache::Place PrefixCache::best_child(const Block& parent, std::span<const int32_t> ids,
                                           int64_t most) const {
  Place best;
  for (const auto& child : parent.children) {
    const int64_t positions = usable(*child, std::min(common_length(child->ids, ids), most));
    if (positions > best.positions) best = {child.get(), positions};
  }
  return best;
}

PrefixCache::Prefix PrefixCache::find(const std::string& salt, std::span<const int32_t> ids, int64_t most) {
  const auto root = roots_.find(salt);
  Prefix prefix;
  if (root == roots_.end()) return prefix;
  most = std::min(most, std::ssize(ids));
  Place best;
  std::vector<KvPage> pages;
  size_t best_pages = 0;
  for (const Block* at = root->second.get(); at != nullptr;) {
    const auto depth = std::ssize(pages) * kKvTile;
    const auto rest = ids_of_page(ids, depth);
    if (const Place place = best_child(*at, rest, most - depth); place.block != nullptr) {
      best = place;
      best_pages = pages.size();
      prefix.length = depth + place.positions;
    }
    // A state may lie further down than this block's own.
    const auto full = std::find_if(at->children.begin(), at->children.end(), [&](const auto& child) {
      return std::ssize(rest) == kKvTile && most - depth > kKvTile && std::ranges::equal(child->ids, rest);
    });
    at = full == at->children.end() ? nullptr : full->get();
    if (at != nullptr) pages.push_back(at->page.front());
  }
  if (best.block == nullptr) return prefix;
  touch_path(best.block);
  pages.erase(pages.begin() + static_cast<ptrdiff_t>(best_pages), pages.end());
  pages.push_back(best.block->page.front());
  prefix.kv = kv_.from_pages(std::move(pages));
  const auto row = best.block->rows.find(best.positions);
  if (row != best.block->rows.end()) prefix.row = row->second;
  if (!states_.empty()) prefix.state = states_.fork(best.block->states.at(best.positions), prefix.length);
  return prefix;
}

PrefixCache::Block* PrefixCache::root_of(const std::string& salt) {
  std::unique_ptr<Block>& root = roots_[salt];
  if (!root) {
    root = std::make_unique<Block>();
    root->salt = salt;
  }
  return root.get();
}

void PrefixCache::insert(const std::string& salt, std::span<const int32_t> ids, const SessionKv& kv,
                         const RecurrentState& state, const Row& row, RowBeside beside) {
  if (ids.empty()) return;
  const Insertion insertion{.since = clock_ + 1, .root = root_of(salt)};
  Block* at = insertion.root;
  int64_t done = 0;
  bool is_own = true;
  while (done < std::ssize(ids)) {
    const auto part = ids_of_page(ids, done);
    Block* child = child_for(*at, part, kv_.share(kv, done / kKvTile, std::ssize(part)), insertion);
    if (child == nullptr) break;
    is_own = is_own && child->page.front().data() == kv.page(done / kKvTile);
    at = child;
    done += std::ssize(part);
  }
  if (done == std::ssize(ids)) {
    const int64_t positions = done - (done - 1) / kKvTile * kKvTile;
    if (!states_.empty() && state.committed() == done) {
      is_own = keep_state(*at, positions, state, insertion) && is_own;
    }
    if (row && (is_own || beside == RowBeside::anything)) keep_row(*at, positions, row, insertion);
  }
  touch_path(at);
  drop_if_empty(insertion.root);
}

// The child that holds these ids; null when there is no room for a new one.
PrefixCache::Block* PrefixCache::child_for(Block& parent, std::span<const int32_t> ids, const KvPage& page,
                                           const Insertion& insertion) {
  for (const auto& child : parent.children) {
    const int64_t common = common_length(child->ids, ids);
    if (common < std::min(std::ssize(child->ids), std::ssize(ids))) continue;
    touch(*child);
    if (common == std::ssize(ids)) return child.get();
    child->ids.assign(ids.begin(), ids.end());
    if (child->page.front().data() != page.data()) drop_rows(*child);  // they are of the page that goes
    child->page.front() = page;
    return child.get();
  }
  if (!make_room(page_bytes(), insertion)) return nullptr;
  auto block = std::make_unique<Block>();
  block->parent = &parent;
  block->ids.assign(ids.begin(), ids.end());
  block->page.push_back(page);
  touch(*block);
  bytes_ += page_bytes();
  return parent.children.emplace_back(std::move(block)).get();
}

// Whether it is this state that is kept there now.
bool PrefixCache::keep_state(Block& block, int64_t positions, const RecurrentState& state,
                             const Insertion& insertion) {
  if (block.states.contains(positions) || !make_room(states_.session_bytes(), insertion)) return false;
  block.states.emplace(positions, states_.fork(state, state.committed()));
  bytes_ += states_.session_bytes();
  return true;
}

void PrefixCache::keep_row(Block& block, int64_t positions, const Row& row, const Insertion& insertion) {
  if (block.rows.contains(positions) || !make_room(bytes_of(row), insertion)) return;
  block.rows.emplace(positions, row);
  bytes_ += bytes_of(row);
}

void PrefixCache::drop_rows(Block& block) {
  for (const auto& [positions, row] : block.rows) bytes_ -= bytes_of(row);
  block.rows.clear();
}

bool PrefixCache::make_room(uint64_t more, const Insertion& insertion) {
  if (more > limit_bytes_) return false;
  while (bytes_ > limit_bytes_ - more) {
    if (by_use_.empty() || by_use_.begin()->first >= insertion.since) return false;
    evict_oldest(insertion.root);
  }
  return true;
}

bool PrefixCache::evict_one() {
  if (by_use_.empty()) return false;
  evict_oldest(nullptr);
  return true;
}

void PrefixCache::evict_oldest(const Block* kept_root) {
  Block* block = by_use_.begin()->second;
  CHECK(block->children.empty(), "a block that others go on from");
  by_use_.erase(by_use_.begin());
  bytes_ -= page_bytes() + block->states.size() * states_.session_bytes();
  drop_rows(*block);
  Block* parent = block->parent;
  std::erase_if(parent->children, [block](const auto& child) { return child.get() == block; });
  if (parent != kept_root) drop_if_empty(parent);
}

void PrefixCache::drop_if_empty(const Block* root) {
  if (root->parent != nullptr || !root->children.empty()) return;
  roots_.erase(roots_.find(root->salt));
}

void PrefixCache::touch(Block& block) {
  by_use_.erase(block.last_use);
  block.last_use = ++clock_;
  by_use_[block.last_use] = &block;
}

void PrefixCache::touch_path(Block* leaf) {
  for (Block* block = leaf; block->parent != nullptr; block = block->parent) touch(*block);
}

PrefixCache::Idle PrefixCache::idle() const {
  Idle idle;
  for (const auto& [use, block] : by_use_) {
    if (!block->page.front().is_shared()) idle.kv_bytes += page_bytes();
    for (const auto& [positions, state] : block->states) {
      if (!state.is_shared()) idle.state_bytes += states_.session_bytes();
    }
  }
  return idle;
}

}  // namespace ete
