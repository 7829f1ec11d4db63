#include <algorithm>
#include <deque>
#include <functional>
#include <queue>

#include "services/front/tokenizer/bpe_model.h"

namespace ete::front {
namespace {

// Positions at which pairs of one rank begin, handed out in ascending order. A pass over the word finds most
// of them in that order already: those need no heap.
class Positions {
 public:
  bool queued = false;  // whether its rank waits to be worked on

  bool empty() const { return head_ == ascending_.size() && late_.empty(); }

  void push(int32_t position) {
    if (ascending_.empty() || position > ascending_.back()) return ascending_.push_back(position);
    if (position == ascending_.back() && head_ < ascending_.size()) return;  // is there
    late_.push_back(position);
    std::push_heap(late_.begin(), late_.end(), std::greater<>());
  }

  int32_t pop() {
    if (head_ == ascending_.size() || (!late_.empty() && late_.front() < ascending_[head_])) {
      std::pop_heap(late_.begin(), late_.end(), std::greater<>());
      const int32_t position = late_.back();
      late_.pop_back();
      return position;
    }
    const int32_t position = ascending_[head_++];
    if (head_ == ascending_.size()) {
      ascending_.clear();
      head_ = 0;
    }
    return position;
  }

  void release() {
    ascending_ = {};
    late_ = {};
    head_ = 0;
  }

 private:
  std::vector<int32_t> ascending_;
  size_t head_ = 0;
  std::vector<int32_t> late_;  // a heap, the smallest first
};

}  // namespace

// One word on its way through the merges, in place. A symbol is a run of slots: its first slot of ids holds
// its id, its first and last slot of lengths_ the number of slots.
class BpeModel::LongWord {
 public:
  LongWord(const BpeModel& model, int32_t* ids, int32_t size, EncodeWatch& watch)
      : model_(model), ids_(ids), size_(size), watch_(watch), lengths_(size, 1) {
    for (int32_t i = 0; i + 1 < size; ++i) consider(i);
  }

  void merge() {
    while (!ranks_.empty()) {
      const uint32_t rank = ranks_.top();
      ranks_.pop();
      Positions& positions = positions_of(rank);
      while (!positions.empty() && (ranks_.empty() || ranks_.top() > rank)) {
        watch_.advance(1);
        merge_at(positions.pop(), rank);
      }
      positions.queued = !positions.empty();
      if (positions.queued) {
        ranks_.push(rank);  // a lower one has come up
      } else {
        positions.release();
      }
    }
  }

  // Moves the ids together; returns their number.
  int32_t compact() {
    int32_t n = 0;
    for (int32_t i = 0; i < size_; i += lengths_[i]) ids_[n++] = ids_[i];
    return n;
  }

 private:
  static constexpr int32_t kJoined = -1;  // this slot begins no symbol any more

  Positions& positions_of(uint32_t rank) {
    const int32_t* known = by_rank_.find(rank);
    if (known) return positions_[*known];
    by_rank_.set(rank, static_cast<int32_t>(positions_.size()));
    return positions_.emplace_back();
  }

  // The pair of the symbol at left and the next one; null when there is no next one or no merge.
  const Rule* pair_at(int32_t left) const {
    const int32_t right = left + lengths_[left];
    return right < size_ ? model_.rule(ids_[left], ids_[right]) : nullptr;
  }

  void consider(int32_t left) {
    const Rule* rule = pair_at(left);
    if (!rule) return;
    Positions& positions = positions_of(rule->rank);
    positions.push(left);
    if (!positions.queued) ranks_.push(rule->rank);
    positions.queued = true;
  }

  void merge_at(int32_t left, uint32_t rank) {
    if (ids_[left] == kJoined) return;
    const Rule* rule = pair_at(left);
    if (!rule || rule->rank != rank) return;
    const int32_t right = left + lengths_[left];
    const int32_t length = lengths_[left] + lengths_[right];
    ids_[left] = rule->merged;
    ids_[right] = kJoined;
    lengths_[left] = length;
    lengths_[left + length - 1] = length;
    if (left > 0) consider(left - lengths_[left - 1]);
    consider(left);
  }

  const BpeModel& model_;
  int32_t* ids_;
  int32_t size_;
  EncodeWatch& watch_;
  std::vector<int32_t> lengths_;
  FlatMap<int32_t> by_rank_;  // rank to index of positions_
  std::deque<Positions> positions_;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks_;
};

void BpeModel::merge_long(std::vector<int32_t>& ids, size_t begin, EncodeWatch& watch) const {
  LongWord word(*this, ids.data() + begin, static_cast<int32_t>(ids.size() - begin), watch);
  word.merge();
  ids.resize(begin + word.compact());
}

}  // namespace ete::front
