#include "services/front/chat/json_builder.h"

#include <iterator>
#include <utility>

namespace ete::front {

bool JsonBuilder::key(string_t& name) {
  Open& object = open_.back();
  const auto [it, is_new] = object.places.try_emplace(name, object.value.size());
  if (!is_new && !named_twice(name)) return false;
  object.place = it->second;
  object.name = std::move(name);
  return true;
}

bool JsonBuilder::open(Json empty) {
  if (open_.size() >= most_depth_) return nested_too_deeply();
  open_.push_back({.value = std::move(empty), .places = {}, .name = {}});
  return true;
}

bool JsonBuilder::close() {
  Json value = std::move(open_.back().value);
  open_.pop_back();
  return add(std::move(value));
}

bool JsonBuilder::add(Json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    return true;
  }
  Open& in = open_.back();
  if (in.value.is_array()) {
    in.value.push_back(std::move(value));
    return true;
  }
  auto& members = in.value.get_ref<Json::object_t&>();
  if (in.place < members.size()) {
    std::next(members.begin(), static_cast<std::ptrdiff_t>(in.place))->second = std::move(value);
  } else {
    members.emplace_back(std::move(in.name), std::move(value));
  }
  return true;
}

}  // namespace ete::front
