#include "engine/weights/layer_streamer.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace ete {

// Calls once: when the copy stream reaches it, or when it is dropped there because a copy before it failed.
// Someone waits for the call.
class LayerStreamer::Notice {
 public:
  explicit Notice(std::function<void()> call) : call_(std::move(call)) {}
  ~Notice() { give(); }
  Notice(const Notice&) = delete;
  Notice& operator=(const Notice&) = delete;
  void give() {
    if (auto call = std::exchange(call_, nullptr)) call();
  }

 private:
  std::function<void()> call_;
};

LayerLease::LayerLease(LayerStreamer* owner, int slot, const BlobLayout& layout, const Bases& bases,
                       Stream* compute)
    : owner_(owner), slot_(slot), layout_(&layout), bases_(bases), compute_(compute) {}

LayerLease::LayerLease(LayerLease&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      slot_(other.slot_),
      layout_(other.layout_),
      bases_(other.bases_),
      compute_(other.compute_) {}

LayerLease::~LayerLease() {
  if (owner_ != nullptr) owner_->release(slot_, *compute_);
}

SplitMatrix LayerLease::matrix(size_t index) const {
  return split_matrix(layout_->places[index], bases_.device, bases_.home, bases_.rest);
}

const float* LayerLease::vector(size_t index) const {
  const WeightPlace& place = layout_->places[index];
  return place.rows == 0 ? nullptr : reinterpret_cast<const float*>(bases_.device + place.device_offset);
}

LayerStreamer::LayerStreamer(Device& device, const WeightStore& store, DeviceArena& arena, Stream& copy,
                             const StreamerOptions& options)
    : device_(device),
      store_(store),
      copy_(copy),
      options_(options),
      shares_(device.info().shares_host_memory) {
  const auto layers = static_cast<size_t>(store.layers());
  CHECK(options.resident.size() == layers, std::to_string(options.resident.size()));
  order_.assign(layers, -1);
  resident_base_.assign(layers, nullptr);
  for (size_t i = 0; i < layers; ++i) {
    if (options.resident[i]) continue;
    order_[i] = static_cast<int64_t>(streamed_.size());
    streamed_.push_back(static_cast<int64_t>(i));
    slot_bytes_ = std::max(slot_bytes_, held_bytes(static_cast<int64_t>(i), options.whole_layers));
  }
  if (!shares_ && store.home() == WeightHome::file) {
    staging_ = device.allocate(store.layout().max_layer_device_bytes(), MemorySpace::host);
  }
  copy_resident_layers(arena);
  if (options.link_limit > 0) pacer_ = device.create_pacer(options.link_limit);
  if (streamed_.empty()) return;
  CHECK(options.slots >= 2, std::to_string(options.slots));
  for (int i = 0; i < options.slots; ++i) {
    slots_.push_back(Slot{
        .data = arena.take(slot_bytes_), .copied = device.create_event(), .computed = device.create_event()});
  }
  fetch_ahead();
}

LayerStreamer::~LayerStreamer() {
  // Copies that are under way read the store and write the slots, which may die right after this.
  await_copies();
}

void LayerStreamer::await_copies() {
  try {
    copy_.synchronize();
  } catch (const std::exception&) {  // nobody will read what the failed copy was to bring
  }
}

size_t LayerStreamer::arena_bytes(const StoreLayout& layout, const StreamerOptions& options,
                                  bool residents_at_home) {
  size_t resident = 0;
  size_t slot_bytes = 0;
  bool streams = false;
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    const size_t bytes = options.whole_layers ? layout.layers[i].bytes : layout.layers[i].device_bytes;
    if (options.resident[i]) {
      if (!residents_at_home) resident += DeviceArena::padded(bytes);
    } else {
      streams = true;
      slot_bytes = std::max(slot_bytes, bytes);
    }
  }
  return resident + (streams ? static_cast<size_t>(options.slots) * DeviceArena::padded(slot_bytes) : 0);
}

void LayerStreamer::copy_resident_layers(DeviceArena& arena) {
  const bool at_home = shares_ && store_.home() == WeightHome::memory;
  for (size_t i = 0; i < order_.size(); ++i) {
    if (order_[i] >= 0) continue;
    const auto layer = static_cast<int64_t>(i);
    if (at_home) {
      resident_base_[i] = store_.layer_home(layer);
      continue;
    }
    const size_t bytes = held_bytes(layer, options_.whole_layers);
    std::byte* data = arena.take(bytes);
    bring(layer, data, 0, bytes);
    resident_base_[i] = data;
  }
  copy_.synchronize();
}

int LayerStreamer::slot_of(int64_t layer) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].layer == layer) return static_cast<int>(i);
  }
  return -1;
}

// How many streamed layers are used before this one, from the cursor on.
int64_t LayerStreamer::distance(int64_t layer) const {
  const auto count = static_cast<int64_t>(streamed_.size());
  return (order_[static_cast<size_t>(layer)] - cursor_ + count) % count;
}

// The slot that may be overwritten for `layer`: an empty one, or the one whose layer is needed last, if that
// is after `layer`; -1: none.
int LayerStreamer::victim_for(int64_t layer) const {
  int victim = -1;
  int64_t furthest = distance(layer);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.leased) continue;
    if (slot.layer < 0) return static_cast<int>(i);
    if (distance(slot.layer) > furthest) {
      furthest = distance(slot.layer);
      victim = static_cast<int>(i);
    }
  }
  return victim;
}

void LayerStreamer::fill(int index, int64_t layer) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  slot.layer = -1;  // until all of it is on its way: any of this may throw
  slot.computed->wait(copy_);
  if (options_.timeline != nullptr) options_.timeline->begin(device_, copy_, Timeline::Lane::copy, layer);
  const bool whole = whole_ && options_.whole_layers;
  bring(layer, slot.data, 0, held_bytes(layer, whole));
  if (options_.timeline != nullptr) options_.timeline->end(device_, copy_, Timeline::Lane::copy, layer);
  slot.copied->record(copy_);
  slot.layer = layer;
  slot.whole = whole;
  bytes_copied_ += held_bytes(layer, whole);
  copying_ = true;
}

// The host's rows, into a slot that holds the others and is not leased.
void LayerStreamer::bring_rest(Slot* slot) {
  const int64_t layer = std::exchange(slot->layer, -1);
  if (options_.timeline != nullptr) options_.timeline->begin(device_, copy_, Timeline::Lane::copy, layer);
  bring(layer, slot->data, held_bytes(layer, false), held_bytes(layer, true));
  if (options_.timeline != nullptr) options_.timeline->end(device_, copy_, Timeline::Lane::copy, layer);
  slot->copied->record(copy_);
  slot->layer = layer;
  slot->whole = true;
  bytes_copied_ += held_bytes(layer, true) - held_bytes(layer, false);
  copying_ = true;
}

// A blob begins with the device's part.
size_t LayerStreamer::held_bytes(int64_t layer, bool whole) const {
  const BlobLayout& layout = store_.layer_layout(layer);
  return whole ? layout.bytes : layout.device_bytes;
}

// Enqueues the way of bytes [begin, end) of a layer's blob from home to their place in the blob at `data`. Of
// a layer in a file, all at once.
void LayerStreamer::bring(int64_t layer, std::byte* data, size_t begin, size_t end) {
  const std::byte* home = nullptr;  // null: packed straight into `data`
  if (store_.home() == WeightHome::memory) {
    home = store_.layer_home(layer);
  } else {
    home = staging_.data();
    std::byte* packed = staging_.size() > 0 ? staging_.data() : data;
    device_.host_async(copy_, [this, layer, packed] { store_.pack_layer(layer, packed); });
  }
  for (size_t done = begin; done < end; done += options_.copy_piece) {
    const size_t piece = std::min(options_.copy_piece, end - done);
    if (pacer_) pacer_->begin(copy_);
    if (home != nullptr) device_.copy_async(copy_, data + done, home + done, piece);
    if (pacer_) pacer_->end(copy_, piece);
  }
}

// In the order of use: the first layers are waited for first.
void LayerStreamer::begin_pass(bool whole) {
  if (release_error_) std::rethrow_exception(release_error_);
  whole_ = whole;
  if (!whole || !options_.whole_layers) return;
  std::vector<Slot*> lacking;
  for (Slot& slot : slots_) {
    if (slot.layer >= 0 && !slot.whole) lacking.push_back(&slot);
  }
  std::sort(lacking.begin(), lacking.end(),
            [this](const Slot* a, const Slot* b) { return distance(a->layer) < distance(b->layer); });
  for (Slot* slot : lacking) bring_rest(slot);
}

void LayerStreamer::prefetch(int64_t layer) {
  if (release_error_) std::rethrow_exception(release_error_);
  if (order_[static_cast<size_t>(layer)] < 0 || slot_of(layer) >= 0) return;
  const int slot = victim_for(layer);
  if (slot >= 0) fill(slot, layer);
}

// Layers of the pass at hand; of the next one as soon as the last of this one is submitted.
void LayerStreamer::fetch_ahead() {
  const int64_t end = std::min(std::ssize(streamed_), cursor_ + std::ssize(slots_));
  for (int64_t i = cursor_; i < end; ++i) prefetch(streamed_[static_cast<size_t>(i)]);
}

LayerLease LayerStreamer::acquire(int64_t layer, Stream& compute) {
  if (release_error_) std::rethrow_exception(release_error_);
  const auto i = static_cast<size_t>(layer);
  const BlobLayout& layout = store_.layer_layout(layer);
  if (order_[i] < 0) {
    return LayerLease(nullptr, -1, layout, bases(layer, resident_base_[i], options_.whole_layers), &compute);
  }
  cursor_ = order_[i];
  prefetch(layer);
  const int index = slot_of(layer);
  CHECK(index >= 0, "every slot is leased");
  Slot& slot = slots_[static_cast<size_t>(index)];
  slot.copied->wait(compute);
  slot.leased = true;
  LayerLease lease(this, index, layout, bases(layer, slot.data, slot.whole),
                   &compute);  // gives the slot back if this throws
  fetch_ahead();
  return lease;
}

// Of a layer in a file no row is the host's.
LayerLease::Bases LayerStreamer::bases(int64_t layer, const std::byte* device_base, bool whole) const {
  const std::byte* home = store_.home() == WeightHome::memory ? store_.layer_home(layer) : device_base;
  const std::byte* rest = whole ? device_base : nullptr;
  return {.device = device_base, .home = home, .rest = shares_ ? home : rest};
}

// Of a destructor. What the device refuses is kept: without the event of this slot it must not be
// overwritten, so that nothing more is fetched or leased until reset().
void LayerStreamer::release(int index, Stream& compute) noexcept {
  try {
    mark_computed(index, compute);
    fetch_ahead();
  } catch (...) {
    if (!release_error_) release_error_ = std::current_exception();
  }
}

void LayerStreamer::mark_computed(int index, Stream& compute) {
  Slot& slot = slots_[static_cast<size_t>(index)];
  slot.leased = false;
  cursor_ = (cursor_ + 1) % static_cast<int64_t>(streamed_.size());
  if (options_.poison_released_slots) {
    // No copy: one that waits behind those of the copy stream would order the streams, and hide a missing
    // event.
    device_.fill_async(compute, slot.data, std::byte{0xff}, slot_bytes_);
    slot.layer = -1;
  }
  slot.computed->record(compute);
}

bool LayerStreamer::notify_when_copied(std::function<void()> call) {
  if (!std::exchange(copying_, false)) return false;
  device_.host_async(copy_, [notice = std::make_shared<Notice>(std::move(call))] { notice->give(); });
  return true;
}

void LayerStreamer::reset() {
  for (Slot& slot : slots_) slot.layer = -1;
  copying_ = false;
  release_error_ = nullptr;
  await_copies();
}

}  // namespace ete
