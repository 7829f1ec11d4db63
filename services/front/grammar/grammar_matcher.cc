#include "services/front/grammar/grammar_matcher.h"

#include <algorithm>
#include <utility>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

uint64_t key_of(uint32_t high, uint32_t low) { return uint64_t{high} << 32 | low; }

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar, const TokenTrie& trie,
                               int32_t vocab_size, std::string field, const Limits& limits)
    : grammar_(std::move(grammar)),
      trie_(trie),
      vocab_size_(vocab_size),
      field_(std::move(field)),
      limits_(limits),
      stacks_(1) {
  current_ = close({{grammar_->start, 0}});
  if (current_ == kDead) {
    refuse("its rules call each other more than " + std::to_string(kMostDepth) + " deep");
  }
}

void GrammarMatcher::refuse(const std::string& what) const {
  throw FrontError(FrontErrorCode::resource_exhausted, field_ + ": " + what, field_);
}

uint32_t GrammarMatcher::push(uint32_t back, uint32_t below) {
  const uint64_t key = key_of(back, below);
  if (const uint32_t* known = stack_ids_.find(key)) return *known;
  const auto made = static_cast<uint32_t>(stacks_.size());
  stacks_.push_back({back, below, stacks_[below].depth + 1});
  stack_ids_.set(key, made);
  return made;
}

// The position of these readings and of all to which they lead without a byte; kDead: none.
int32_t GrammarMatcher::close(std::vector<Reading> work) {
  Position position;
  FlatMap<uint8_t> seen;
  const auto visit = [&](uint32_t state, uint32_t stack) {
    if (seen.find(key_of(state, stack)) != nullptr) return;
    seen.set(key_of(state, stack), 1);
    work.push_back({state, stack});
  };
  for (const Reading& reading : std::exchange(work, {})) visit(reading.state, reading.stack);
  while (!work.empty()) {
    const Reading here = work.back();
    work.pop_back();
    if (++work_ > limits_.work || seen.size() > 4 * limits_.readings) {
      refuse("the text can be read in too many ways; a grammar with fewer choices at a time is accepted");
    }
    if (grammar_->ends[here.state] != 0) {
      if (here.stack == 0) {
        position.complete = true;
      } else {
        visit(stacks_[here.stack].back, stacks_[here.stack].below);
      }
    }
    bool reads = false;
    for (uint32_t e = grammar_->first_edge[here.state]; e < grammar_->first_edge[here.state + 1]; ++e) {
      const Grammar::Edge& edge = grammar_->edges[e];
      switch (edge.kind) {
        case Grammar::EdgeKind::bytes:
          reads = true;
          break;
        case Grammar::EdgeKind::free:
          visit(edge.target, here.stack);
          break;
        case Grammar::EdgeKind::call:
          if (grammar_->ends[edge.target] != 0) {  // nothing is left to do there
            visit(edge.callee, here.stack);
          } else if (stacks_[here.stack].depth < kMostDepth) {
            visit(edge.callee, push(edge.target, here.stack));
          } else {
            cut_short_ = true;
          }
          break;
      }
    }
    if (reads) position.readings.push_back(here);
  }
  if (position.readings.empty() && !position.complete) return kDead;
  return intern(std::move(position));
}

int32_t GrammarMatcher::intern(Position position) {
  const auto before = [](const Reading& a, const Reading& b) {
    return key_of(a.state, a.stack) < key_of(b.state, b.stack);
  };
  std::sort(position.readings.begin(), position.readings.end(), before);
  uint64_t hash = position.complete ? 1 : 0;
  for (const Reading& reading : position.readings) hash = mixed(hash, key_of(reading.state, reading.stack));
  const auto [first, last] = position_ids_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    const Position& known = positions_[it->second];
    if (known.complete == position.complete && known.readings == position.readings) return it->second;
  }
  if (table_.size() > limits_.most_cells) {
    refuse("it takes too many states; a grammar with fewer choices at a time is accepted");
  }
  const auto made = static_cast<int32_t>(positions_.size());
  positions_.push_back(std::move(position));
  table_.resize(table_.size() + grammar_->representative.size(), kUnknown);
  position_ids_.emplace(hash, made);
  return made;
}

int32_t GrammarMatcher::step(int32_t position, uint8_t byte_class) {
  const uint8_t byte = grammar_->representative[byte_class];
  std::vector<Reading> after;
  for (const Reading& reading : positions_[position].readings) {
    ++work_;
    for (uint32_t e = grammar_->first_edge[reading.state]; e < grammar_->first_edge[reading.state + 1]; ++e) {
      const Grammar::Edge& edge = grammar_->edges[e];
      const bool reads = edge.kind == Grammar::EdgeKind::bytes && edge.low <= byte && byte <= edge.high;
      if (reads) after.push_back({edge.target, reading.stack});
    }
  }
  return after.empty() ? kDead : close(std::move(after));
}

int32_t GrammarMatcher::next(int32_t position, uint8_t byte_class) {
  const size_t cell = static_cast<size_t>(position) * grammar_->representative.size() + byte_class;
  if (table_[cell] == kUnknown) {
    const int32_t found = step(position, byte_class);
    table_[cell] = found;
  }
  return table_[cell];
}

void GrammarMatcher::make_room() {
  work_ = 0;
  if (table_.size() > limits_.kept_cells || stacks_.size() > limits_.kept_cells) forget_all_but(current_);
}

void GrammarMatcher::forget_all_but(int32_t position) {
  Position kept = std::move(positions_[position]);
  const std::vector<Stack> stacks = std::exchange(stacks_, std::vector<Stack>(1));
  stack_ids_ = {};
  // A stack's parts were made before it, so they are made again in that order.
  std::vector<uint32_t> path;
  for (Reading& reading : kept.readings) {
    for (uint32_t at = reading.stack; at != 0; at = stacks[at].below) path.push_back(at);
    reading.stack = 0;
    for (; !path.empty(); path.pop_back()) reading.stack = push(stacks[path.back()].back, reading.stack);
  }
  positions_.clear();
  table_.clear();
  position_ids_.clear();
  token_sets_.clear();
  current_ = intern(std::move(kept));
}

bool GrammarMatcher::advance(std::string_view bytes) {
  make_room();
  for (const char c : bytes) {
    const int32_t after = next(current_, grammar_->class_of[static_cast<uint8_t>(c)]);
    if (after == kDead) return false;
    current_ = after;
  }
  return true;
}

TokenSet GrammarMatcher::find_allowed() {
  TokenSet set(vocab_size_);
  const auto nodes = trie_.nodes();
  std::vector<int32_t> at(trie_.longest() + 1);  // the position after each byte of a node's text
  at[0] = current_;
  for (size_t i = 0; i < nodes.size();) {
    const TokenTrie::Node& node = nodes[i];
    const int32_t after = next(at[node.depth - 1], grammar_->class_of[node.byte]);
    if (after == kDead) {
      i = node.next;
      continue;
    }
    at[node.depth] = after;
    for (const int32_t id : trie_.tokens(i)) set.add(id);
    ++i;
  }
  return set;
}

const TokenSet& GrammarMatcher::allowed() {
  make_room();
  const auto known = token_sets_.find(current_);
  if (known != token_sets_.end()) return known->second;
  TokenSet found = find_allowed();
  if ((token_sets_.size() + 1) * found.mask().size() > limits_.kept_token_bytes) token_sets_.clear();
  return token_sets_.insert_or_assign(current_, std::move(found)).first->second;
}

}  // namespace ete::front
