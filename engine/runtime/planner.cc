#include "engine/runtime/planner.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/runtime/byte_text.h"
#include "engine/runtime/engine_session.h"
#include "engine/runtime/layer_space.h"
#include "engine/runtime/prefix_cache_plan.h"
#include "engine/runtime/session_memory.h"
#include "engine/runtime/vocabulary_stage.h"

namespace ete {

namespace {

constexpr int64_t kChunkChoices[] = {2048, 1024, 512, 256, 128, 64};
constexpr int64_t kUsualChunk = kKvTile;
constexpr size_t kLogitsTarget = size_t{16} << 20;  // bytes of logits at a time
constexpr int64_t kMinHeadRows = 16;
constexpr int64_t kMaxHeadRows = 64;
constexpr int64_t kRecordedLayers = 8;
constexpr int64_t kCallsOfLayer = 16;  // of ops

class Planner {
 public:
  explicit Planner(const PlanInput& input)
      : in_(input), options_(input.options), space_(options_, residents_take_memory()) {}

  PlannedEngine plan() {
    choose_rows();
    measure();
    choose_chunk();
    place_vocabulary();
    place_kv();
    place_states();
    place_layers();
    place_recordings();
    lay_out_store();
    check_host();
    describe();
    return std::move(result_);
  }

 private:
  // An explicit budget holds everything that a device with memory of its own would hold, so that the CPU
  // device can stand in for one. Without it, a device that shares host memory reads resident weights at home.
  bool has_budget() const { return options_.raw.vram_budget > 0 || !in_.device.shares_host_memory; }
  uint64_t budget() const {
    return options_.raw.vram_budget > 0 ? options_.raw.vram_budget : usable(in_.device.free_bytes);
  }
  bool in_file() const { return options_.home == WeightHome::file; }
  // Resident layers are read at home and cost nothing more.
  bool residents_at_home() const { return in_.device.shares_host_memory && !in_file(); }
  bool residents_take_memory() const { return has_budget() || in_file(); }
  static uint64_t usable(uint64_t free_bytes) { return free_bytes / 10 * 9; }

  double share() const { return options_.host_share.value_or(in_.chosen_share.share); }
  bool owns_memory() const { return !in_.device.shares_host_memory; }
  // Bytes of a layer that a slot, or a resident layer, holds.
  size_t held_bytes(const BlobLayout& layer) const {
    return owns_memory() ? layer.bytes : layer.device_bytes;
  }

  void choose_rows() {
    const ModelConfig& c = in_.config;
    Placement& p = result_.placement;
    if (options_.context && *options_.context > c.max_position_embeddings) {
      throw Error(ErrorCode::invalid_argument,
                  "--context: '" + std::to_string(*options_.context) + "'; accepted: 1 to " +
                      std::to_string(c.max_position_embeddings) + ", the model's positions");
    }
    p.context = options_.context.value_or(c.max_position_embeddings);
    p.decode_rows = std::max<int64_t>(kMaxDrafts + 1, options_.raw.max_sessions);
    const auto row = static_cast<size_t>(c.vocab_size) * sizeof(float);
    p.head_rows = std::clamp(static_cast<int64_t>(kLogitsTarget / row), kMinHeadRows, kMaxHeadRows);
  }

  // `auto`: the more rows, the more often a layer that crossed the link is used.
  void choose_chunk() {
    Placement& p = result_.placement;
    if (options_.chunk) {
      p.chunk = *options_.chunk;
      return note_chunk();
    }
    for (const int64_t chunk : kChunkChoices) {
      if (chunk > kUsualChunk && !large_chunks_pay()) continue;
      p.chunk = chunk;
      if (activation_bytes(chunk) <= budget() / (chunk > kUsualChunk ? 8 : 4) && leaves_room()) return;
    }
  }

  // Not where activations pass through caches, nor where states would be kept more rarely than every page.
  bool large_chunks_pay() const {
    return owns_memory() && (memory_.states_all == 0 || options_.raw.prefix_cache == 0);
  }

  // For the least that everything else takes.
  bool leaves_room() const {
    if (!has_budget()) return true;
    const uint64_t kv = options_.kv == PlacementChoice::device ? memory_.kv_all
                        : options_.kv == PlacementChoice::host ? tiles_bytes()
                                                               : std::min(memory_.kv_all, tiles_bytes());
    const uint64_t states = std::min(memory_.states_all, state_window_bytes());
    return activation_bytes(result_.placement.chunk) + kv + states + space_.least(has_budget()) <= budget();
  }

  size_t workspace_bytes(int64_t chunk) const {
    const ModelConfig& c = in_.config;
    const Placement& p = result_.placement;
    if (!in_.workspace_bytes) return 0;
    return in_.workspace_bytes(
        {.rows = chunk + p.decode_rows,
         .cols = std::max({c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim,
                           c.delta_net.value_width()}),
         .heads = c.num_attention_heads,
         .head_dim = c.head_dim,
         .decode_tiles = p.decode_rows * ((p.context + kKvTile - 1) / kKvTile),
         .delta_net = c.delta_net,
         .vocab = c.vocab_size});
  }

  void note_chunk() {
    const int64_t asked = options_.raw.chunk;
    if (asked == *options_.chunk) return;
    note("--chunk " + std::to_string(asked) + ": rounded up to " + std::to_string(*options_.chunk));
  }

  size_t activation_bytes(int64_t chunk) const {
    const auto rows = static_cast<size_t>(chunk + result_.placement.decode_rows);
    const ActivationSizes sizes = activation_sizes(in_.config);
    size_t total = kModelConstantBytes + DeviceArena::padded(workspace_bytes(chunk));
    for (const size_t part : {sizes.x, sizes.normed, sizes.qkv, sizes.mixed, sizes.gate, sizes.up}) {
      total += DeviceArena::padded(part * rows);
    }
    return total + VocabularyStage::arena_bytes(in_.config, result_.placement);
  }

  void measure() {
    for (const BlobSpec& layer : in_.weights.layers) {
      const BlobLayout shared = lay_out(layer, share());
      const size_t resident = owns_memory() ? shared.bytes : lay_out(layer, 0).bytes;
      space_.add_layer(DeviceArena::padded(resident), DeviceArena::padded(held_bytes(shared)));
    }
    memory_ = session_memory(in_.config, options_, result_.placement.context);
  }

  // Embedding, lm_head and final norm where the device reads them.
  uint64_t vocabulary_bytes(VocabularyPlace place) const {
    StoreLayout layout;
    layout.embedding = lay_out(in_.weights.embedding, 0);
    layout.lm_head = lay_out(in_.weights.lm_head, 0);
    layout.final_norm = lay_out(in_.weights.final_norm, 0);
    return vocabulary_arena_bytes(layout, place);
  }

  // `auto` keeps the vocabulary on the device where that leaves room for everything else: a byte of a
  // streamed layer crosses the link in every pass, a byte of the vocabulary never.
  void place_vocabulary() {
    Placement& p = result_.placement;
    p.vocabulary = VocabularyPlace::device;
    const uint64_t on_device = activation_bytes(p.chunk) + vocabulary_bytes(VocabularyPlace::device);
    if (in_.device.shares_host_memory) {
      p.vocabulary = VocabularyPlace::shared;
    } else if (options_.vocab == PlacementChoice::host) {
      p.vocabulary = VocabularyPlace::host;
    } else if (options_.vocab == PlacementChoice::automatic) {
      const uint64_t kv = options_.kv == PlacementChoice::host ? tiles_bytes() : memory_.kv_all;
      const uint64_t layers = options_.resident_layers ? space_.least(has_budget()) : space_.all_resident();
      if (on_device + kv + memory_.states_all + layers > budget()) p.vocabulary = VocabularyPlace::host;
    }
    fixed_ = activation_bytes(p.chunk) + vocabulary_bytes(p.vocabulary);
    // A budget on the CPU device counts what a device with memory of its own would hold.
    if (p.vocabulary == VocabularyPlace::shared && options_.vocab == PlacementChoice::device &&
        has_budget()) {
      fixed_ += vocabulary_bytes(VocabularyPlace::device);
    }
  }

  TiledKvSizes tile_sizes() const {
    const Placement& p = result_.placement;
    return kv_window(in_.config, options_, memory_, p.chunk + p.decode_rows);
  }
  uint64_t tiles_bytes() const {
    return in_.device.shares_host_memory ? 0 : TiledKv::arena_bytes(tile_sizes());
  }

  void place_kv() {
    Placement& p = result_.placement;
    p.kv_space = options_.kv == PlacementChoice::host ? MemorySpace::host : MemorySpace::device;
    if (has_budget()) {
      const uint64_t least = fixed_ + space_.least(has_budget()) + state_window_bytes();
      const uint64_t room = budget() - std::min(budget(), least);
      if (options_.kv == PlacementChoice::automatic && memory_.kv_all > room) p.kv_space = MemorySpace::host;
      if (p.kv_space == MemorySpace::device && memory_.kv_all > room) refuse_kv(room);
      if (p.kv_space == MemorySpace::device) kv_on_device_ = memory_.kv_all;
    }
    if (p.kv_space == MemorySpace::device || in_.device.shares_host_memory) return;
    p.tiled_kv = tile_sizes();
    fixed_ += tiles_bytes();
  }

  uint64_t state_window_bytes() const {
    if (in_.device.shares_host_memory || memory_.states_all == 0) return 0;
    return StreamedRecurrence::arena_bytes(state_window(in_.config, options_));
  }

  // On the device where all sessions' fit, or take no more than the window that would save it; else at home.
  void place_states() {
    Placement& p = result_.placement;
    if (memory_.states_all == 0 || !has_budget()) return;
    const uint64_t least_layers = space_.least(has_budget());
    const uint64_t least = fixed_ + least_layers + kv_on_device_;
    const uint64_t window = state_window_bytes();
    if (least + memory_.states_all <= budget() || (window > 0 && memory_.states_all <= window)) {
      states_on_device_ = memory_.states_all;
      return;
    }
    p.state_space = MemorySpace::host;
    if (in_.device.shares_host_memory) return;
    // Not in the place of layers that could all stay.
    const bool can_all_stay =
        !options_.resident_layers && fixed_ + kv_on_device_ + window + space_.all_resident() <= budget();
    const uint64_t beside = fixed_ + kv_on_device_ + (can_all_stay ? space_.all_resident() : least_layers);
    const uint64_t room = std::min(budget() - std::min(budget(), beside), budget() / 8);
    p.streamed_states = widened(state_window(in_.config, options_), options_.raw.max_sessions, room);
    fixed_ += StreamedRecurrence::arena_bytes(*p.streamed_states);
    note("recurrent states lie on the host: " + byte_text(memory_.state_session) +
         " of each session travel there and back in a pass");
  }

  int64_t layers() const { return static_cast<int64_t>(in_.weights.layers.size()); }

  [[noreturn]] void refuse_kv(uint64_t room) const {
    const uint64_t positions = room / memory_.kv_page / static_cast<uint64_t>(options_.raw.max_sessions) *
                               static_cast<uint64_t>(kKvTile);
    std::string would_fit = byte_text(budget() + memory_.kv_all - room) + " would hold them";
    if (positions > 0) would_fit += ", or --context " + std::to_string(positions);
    if (room >= memory_.kv_session)
      would_fit += ", or --max-sessions " + std::to_string(room / memory_.kv_session);
    would_fit += ", or --kv host";
    throw Error(ErrorCode::resource_exhausted,
                "--vram-budget: " + std::to_string(options_.raw.max_sessions) + " sessions of " +
                    std::to_string(result_.placement.context) + " positions need " +
                    byte_text(memory_.kv_all) + " of KV cache, but " + byte_text(room) + " of " +
                    byte_text(budget()) + " are left for it: " + would_fit);
  }

  void place_layers() {
    const uint64_t taken = fixed_ + kv_on_device_ + states_on_device_;
    const uint64_t room = budget() - std::min(budget(), taken);
    int64_t count = 0;
    if (options_.resident_layers) {
      count = space_.resident_count(*options_.resident_layers);
    } else if (has_budget() ? space_.all_resident() <= room : !in_file()) {
      count = layers();
    }
    const std::optional<int> slots = space_.slots_within(count, room);
    if (taken > budget() || !slots) space_.refuse(count, taken, budget());
    if (!options_.resident_layers && count == 0 && has_budget()) {
      while (count < layers() && space_.fits(count + 1, *slots, room)) ++count;
    }
    result_.placement.slots = *slots;
    result_.placement.resident = space_.spread(count);
    if (count == layers()) result_.placement.slots = 0;
    note_slots(count);
  }

  // Where all that layers read lies on the device, a stretch of them can be submitted as one.
  void place_recordings() {
    Placement& p = result_.placement;
    if (!in_.recording_bytes || !LayerSpace::all_of(p.resident) || p.tiled_kv || p.streamed_states ||
        share() > 0)
      return;
    const int64_t at_once = std::min(layers(), kRecordedLayers);
    const auto recordings = static_cast<uint64_t>((layers() + at_once - 1) / at_once);
    const uint64_t bytes = recordings * in_.recording_bytes(at_once * kCallsOfLayer);
    const uint64_t taken = fixed_ + kv_on_device_ + states_on_device_ + space_.all_resident() + bytes;
    if (bytes == 0 || taken > budget()) return;
    p.recorded_layers = at_once;
    recording_bytes_ = bytes;
    note("passes of decode rows alone submit " + std::to_string(at_once) +
         " layers at once, as recorded in " + byte_text(bytes) + " of device memory");
  }

  void note_slots(int64_t count) {
    if (count == layers()) {
      if (options_.slots) note("every layer is resident: --slots has nothing to act on");
      if (share() > 0 && !owns_memory()) note("every layer is resident: --host-share has nothing to act on");
      if (options_.raw.link_limit > 0) note("every layer is resident: --link-limit has nothing to act on");
    }
    if (share() > 0 && owns_memory() && count > 0) {
      note("--host-share holds for resident layers, too: no bit of a row depends on where a layer lies");
    }
    if (!options_.host_share) note("--host-share auto: " + in_.chosen_share.reason);
  }

  void lay_out_store() {
    Placement& p = result_.placement;
    // Where the device reads host memory in place, a row's bits are the same wherever it lies. Elsewhere they
    // may not depend on residency, so a resident layer has its share, too.
    std::vector<double> shares;
    for (const bool resident : p.resident) shares.push_back(resident && !owns_memory() ? 0.0 : share());
    p.layout = lay_out(in_.weights, shares);
    if (share() > 0 && owns_memory()) p.host_rows = HostRowsSizes::of(p.layout, p.decode_rows);
    p.workspace_bytes = workspace_bytes(p.chunk);
    p.arena_bytes =
        activation_bytes(p.chunk) + vocabulary_arena_bytes(p.layout, p.vocabulary) +
        (p.tiled_kv ? tiles_bytes() : 0) +
        (p.streamed_states ? StreamedRecurrence::arena_bytes(*p.streamed_states) : 0) +
        LayerStreamer::arena_bytes(
            p.layout, {.resident = p.resident, .slots = p.slots, .whole_layers = p.host_rows.has_value()},
            residents_at_home());
  }

  // In host memory. Layers of a file pass through it on their way to a device with memory of its own.
  uint64_t home_bytes() const {
    const StoreLayout& layout = result_.placement.layout;
    if (!in_file()) return layout.bytes();
    const bool staged = !in_.device.shares_host_memory;
    return layout.vocabulary_bytes() + (staged ? layout.max_layer_device_bytes() : 0);
  }

  void check_host() {
    Placement& p = result_.placement;
    const uint64_t home = home_bytes();
    const uint64_t needed = home + (in_.device.shares_host_memory ? p.arena_bytes : 0);
    const uint64_t host = usable(in_.host_free_bytes);
    if (needed + memory_.kv_page + memory_.state_session > host) {
      throw Error(ErrorCode::resource_exhausted,
                  in_.options.raw.model + ": " + byte_text(needed) + " of weights (" + byte_text(home) +
                      ") and activations and " + byte_text(memory_.kv_page + memory_.state_session) +
                      " of KV cache and recurrent state need more than the " + byte_text(host) +
                      " of RAM that are free");
    }
    const uint64_t left = host - needed;
    const bool all_set_aside = kv_on_device_ > 0 && states_on_device_ == memory_.states_all;
    p.prefix_cache = plan_prefix_cache({.asked = options_.raw.prefix_cache,
                                        .set_aside = all_set_aside ? kv_on_device_ + states_on_device_ : 0,
                                        .host_left = left,
                                        .host_least = memory_.kv_page + memory_.state_session},
                                       &result_.plan.notes);
    prefix_cache_beside_ = all_set_aside ? 0 : p.prefix_cache;
    p.state_budget = states_on_device_ > 0 ? states_on_device_ : left;
    const bool caches_states = memory_.states_all > 0 && states_on_device_ == 0;
    const uint64_t states = memory_.states_all + (caches_states ? prefix_cache_beside_ : 0);
    p.kv_budget = kv_on_device_ > 0 ? kv_on_device_ : left - std::min(left - memory_.kv_page, states);
    if (p.kv_budget < memory_.kv_all) {
      note("KV cache is allocated as sessions grow: " + byte_text(p.kv_budget) + " hold " +
           std::to_string(p.kv_budget / memory_.kv_page * static_cast<uint64_t>(kKvTile)) +
           " positions of all sessions together, not " + std::to_string(options_.raw.max_sessions) + " x " +
           std::to_string(p.context) + " at once");
    }
  }

  void note(std::string text) { result_.plan.notes.push_back(std::move(text)); }

  void describe() {
    Plan& plan = result_.plan;
    const Placement& p = result_.placement;
    plan.device_name = in_.device.name;
    plan.kernels = in_.kernels;
    plan.host_share = share();
    if (p.host_rows) plan.kernels += "; host rows (decode): " + in_.host_products;
    plan.layers = layers();
    plan.resident_layers = std::count(p.resident.begin(), p.resident.end(), true);
    plan.slots = p.slots;
    plan.context = p.context;
    plan.chunk = p.chunk;
    plan.max_sessions = options_.raw.max_sessions;
    plan.threads = in_.threads;
    plan.kv_placement = p.kv_space == MemorySpace::device ? "device" : "host";
    plan.kv_type = std::string(name_of(options_.kv_type));
    const bool on_device =
        p.vocabulary == VocabularyPlace::device || options_.vocab == PlacementChoice::device;
    plan.vocab_placement = on_device ? "device" : "host";
    if (p.vocabulary == VocabularyPlace::host) note("vocabulary by host threads: " + in_.host_products);
    plan.home_bytes = home_bytes();
    for (size_t i = 0; i < p.resident.size(); ++i) {
      const BlobLayout& layer = p.layout.layers[i];
      if (p.resident[i]) {
        plan.resident_bytes += held_bytes(layer);
      } else {
        plan.streamed_bytes_per_pass += layer.device_bytes;
        plan.prompt_streamed_bytes_per_pass += held_bytes(layer);
      }
      plan.host_bytes_per_pass += layer.bytes - layer.device_bytes;
      for (const WeightSpec& weight : in_.weights.layers[i]) {
        if (weight.shape == WeightShape::matrix) {
          plan.weights_per_row += static_cast<uint64_t>(weight.rows) * static_cast<uint64_t>(weight.cols);
        }
      }
    }
    plan.lm_head_bytes = p.layout.lm_head.places.empty() ? p.layout.embedding.bytes : p.layout.lm_head.bytes;
    if (in_file()) {
      note("--home mmap: layers stay in the file; each pass reads and packs " +
           byte_text(plan.streamed_bytes_per_pass) + " from it, through the system's page cache");
    }
    plan.kv_bytes_per_token = memory_.kv_page / static_cast<uint64_t>(kKvTile);
    plan.kv_bytes_per_session = memory_.kv_session;
    plan.state_bytes_per_session = memory_.state_session;
    if (memory_.state_session > 0)
      plan.state_placement = p.state_space == MemorySpace::device ? "device" : "host";
    plan.prefix_cache_bytes = p.prefix_cache;
    plan.activation_bytes = activation_bytes(p.chunk);
    const uint64_t kv_peak = std::min(memory_.kv_all, p.kv_budget);
    const uint64_t states_peak = std::min(memory_.states_all, p.state_budget);
    const bool kv_is_device = p.kv_space == MemorySpace::device;
    const uint64_t on_device_peak = (kv_is_device ? kv_peak : 0) +
                                    (p.state_space == MemorySpace::device ? states_peak : 0) +
                                    (has_budget() ? 0 : prefix_cache_beside_);
    // What a device that shares the host's memory reads at home stands for what another would hold itself.
    uint64_t at_home = residents_at_home() ? plan.resident_bytes : 0;
    if (in_.device.shares_host_memory && on_device) at_home += vocabulary_bytes(VocabularyPlace::device);
    plan.peak_device_bytes = at_home + p.arena_bytes + recording_bytes_ + on_device_peak;
    plan.peak_host_bytes =
        plan.home_bytes + kept_rows_bytes() + kv_peak + states_peak + prefix_cache_beside_ - on_device_peak;
    if (p.host_rows) plan.peak_host_bytes += p.host_rows->host_bytes();
    if (prefix_cache_beside_ == 0) plan.peak_host_bytes += cached_rows_bytes();
    if (in_.device.shares_host_memory) plan.peak_host_bytes += p.arena_bytes + on_device_peak;
    plan.bytes_by_format = bytes_by_format(in_.weights);
  }

  // Whole rows of logits that stay for fetch_row, and as many that are on their way to callers.
  uint64_t kept_rows_bytes() const {
    return 2 * static_cast<uint64_t>(options_.raw.max_sessions * KeptRows::kMaxRows * in_.config.vocab_size) *
           sizeof(float);
  }

  // Whole rows of logits, each with a page of what was restored: in host memory, wherever that lies.
  uint64_t cached_rows_bytes() const {
    const uint64_t row = static_cast<uint64_t>(in_.config.vocab_size) * sizeof(float);
    return result_.placement.prefix_cache / (memory_.kv_page + memory_.state_session + row) * row;
  }

  const PlanInput& in_;
  const ParsedOptions& options_;
  LayerSpace space_;
  PlannedEngine result_;
  uint64_t fixed_ = 0;  // activations, logits, constants, windows, vocabulary when it is on the device
  SessionMemory memory_;
  uint64_t kv_on_device_ = 0;         // set aside in an explicit budget
  uint64_t states_on_device_ = 0;     // set aside in an explicit budget
  uint64_t recording_bytes_ = 0;      // of launches
  uint64_t prefix_cache_beside_ = 0;  // of cached prefixes, beyond what is set aside for sessions
};

}  // namespace

PlannedEngine make_plan(const PlanInput& input) { return Planner(input).plan(); }

}  // namespace ete
