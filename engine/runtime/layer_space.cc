#include "engine/runtime/layer_space.h"

#include <algorithm>
#include <string>

#include "engine/base/error.h"
#include "engine/runtime/byte_text.h"

namespace ete {

namespace {

constexpr int kSlotChoices[] = {4, 3, 2};
constexpr int kLeastSlots = 2;

}  // namespace

void LayerSpace::add_layer(size_t as_resident, size_t in_slot) {
  resident_bytes_.push_back(as_resident);
  all_resident_ += as_resident;
  slot_bytes_ = std::max(slot_bytes_, in_slot);
}

int64_t LayerSpace::resident_count(int64_t wanted) const {
  if (wanted > layers()) {
    throw Error(ErrorCode::invalid_argument, "--resident-layers: '" + std::to_string(wanted) +
                                                 "'; accepted: auto, or -1 to " + std::to_string(layers()));
  }
  return wanted == -1 ? layers() : wanted;
}

uint64_t LayerSpace::least(bool has_budget) const {
  const uint64_t slots = least_slots_bytes();
  if (!has_budget) return options_.resident_layers.value_or(-1) == -1 ? 0 : slots;
  if (!options_.resident_layers) return std::min<uint64_t>(all_resident_, slots);
  const std::vector<bool> resident = spread(resident_count(*options_.resident_layers));
  return bytes_of(resident) + (all_of(resident) ? 0 : slots);
}

std::vector<bool> LayerSpace::spread(int64_t count) const {
  std::vector<bool> resident;
  for (int64_t i = 0; i < layers(); ++i) {
    resident.push_back((i + 1) * count / layers() > i * count / layers());
  }
  return resident;
}

bool LayerSpace::all_of(const std::vector<bool>& resident) {
  return std::find(resident.begin(), resident.end(), false) == resident.end();
}

bool LayerSpace::fits(int64_t count, int slots, uint64_t room) const {
  const std::vector<bool> resident = spread(count);
  const uint64_t held = residents_take_memory_ ? bytes_of(resident) : 0;
  return held + (all_of(resident) ? 0 : static_cast<uint64_t>(slots) * slot_bytes_) <= room;
}

std::optional<int> LayerSpace::slots_within(int64_t count, uint64_t room) const {
  for (const int choice : kSlotChoices) {
    const int slots = options_.slots.value_or(choice);
    if (fits(count, slots, room)) return slots;
  }
  return std::nullopt;
}

void LayerSpace::refuse(int64_t count, uint64_t taken, uint64_t budget) const {
  const std::vector<bool> resident = spread(count);
  const uint64_t held = residents_take_memory_ ? bytes_of(resident) : 0;
  const uint64_t room = budget - std::min(budget, taken + held);
  const uint64_t slots = all_of(resident) ? 0 : least_slots_bytes();
  std::string what = std::to_string(count) + " resident layers of " + byte_text(held);
  if (slots > 0) {
    what += ", " + std::to_string(options_.slots.value_or(kLeastSlots)) + " slots of " +
            byte_text(slot_bytes_) + " (" + std::to_string(room / slot_bytes_) + " would fit)";
  }
  throw Error(ErrorCode::resource_exhausted,
              "--vram-budget: " + byte_text(budget) + " do not hold " + what + " and " + byte_text(taken) +
                  " of activations and KV cache: " + byte_text(taken + held + slots) + " would");
}

uint64_t LayerSpace::bytes_of(const std::vector<bool>& resident) const {
  uint64_t total = 0;
  for (size_t i = 0; i < resident.size(); ++i) total += resident[i] ? resident_bytes_[i] : 0;
  return total;
}

uint64_t LayerSpace::least_slots_bytes() const {
  return static_cast<uint64_t>(options_.slots.value_or(kLeastSlots)) * slot_bytes_;
}

}  // namespace ete
