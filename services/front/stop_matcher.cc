#include "services/front/stop_matcher.h"

#include <utility>

namespace ete::front {

StopMatcher::StopMatcher(const std::vector<std::string>& stops) : nodes_(1) {
  for (size_t i = 0; i < stops.size(); ++i) {
    add(stops[i], static_cast<int32_t>(i));
    lengths_.push_back(stops[i].size());
  }
  link();
}

int32_t StopMatcher::child(int32_t node, char byte) const {
  int32_t c = nodes_[node].first_child;
  while (c >= 0 && nodes_[c].byte != byte) c = nodes_[c].next_sibling;
  return c;
}

void StopMatcher::add(std::string_view stop, int32_t index) {
  int32_t node = 0;
  for (char byte : stop) {
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      Node fresh;
      fresh.next_sibling = nodes_[node].first_child;
      fresh.depth = nodes_[node].depth + 1;
      fresh.byte = byte;
      nodes_.push_back(fresh);
      nodes_[node].first_child = next;
    }
    node = next;
  }
  if (nodes_[node].stop < 0) nodes_[node].stop = index;
}

// Breadth first, so that the shorter suffixes are linked before they are followed.
void StopMatcher::link() {
  std::vector<int32_t> queue = {0};
  for (size_t head = 0; head < queue.size(); ++head) {
    const int32_t node = queue[head];
    for (int32_t c = nodes_[node].first_child; c >= 0; c = nodes_[c].next_sibling) {
      queue.push_back(c);
      if (node == 0) continue;
      int32_t suffix = nodes_[node].fail;
      while (suffix != 0 && child(suffix, nodes_[c].byte) < 0) suffix = nodes_[suffix].fail;
      const int32_t target = child(suffix, nodes_[c].byte);
      nodes_[c].fail = target < 0 ? 0 : target;
      if (nodes_[c].stop < 0) nodes_[c].stop = nodes_[nodes_[c].fail].stop;
    }
  }
}

std::string StopMatcher::push(std::string_view bytes) {
  if (matched_) return {};
  for (size_t i = 0; i < bytes.size(); ++i) {
    int32_t next = child(state_, bytes[i]);
    while (next < 0 && state_ != 0) {
      state_ = nodes_[state_].fail;
      next = child(state_, bytes[i]);
    }
    if (next >= 0) state_ = next;
    if (const int32_t stop = nodes_[state_].stop; stop >= 0) {
      matched_ = static_cast<size_t>(stop);
      held_.append(bytes.substr(0, i + 1));
      held_.resize(held_.size() - lengths_[stop]);
      return std::exchange(held_, {});
    }
  }
  held_.append(bytes);
  std::string out = held_.substr(0, held_.size() - nodes_[state_].depth);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::flush() {
  if (matched_) return {};
  state_ = 0;
  return std::exchange(held_, {});
}

}  // namespace ete::front
