#include "engine/weights/weight_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <utility>

#include "engine/base/check.h"
#include "engine/weights/pack_tensor.h"

namespace ete {

namespace {

int64_t source_row(const WeightSpec& spec, int64_t row) {
  const RowGroups& groups = spec.groups;
  if (groups.rows == 0) {
    return spec.permuted_heads == 0 ? row : permuted_row(row, spec.rows / spec.permuted_heads);
  }
  return row / groups.rows * groups.every + groups.first + row % groups.rows;
}

int64_t source_rows(const WeightSpec& spec) {
  return spec.groups.rows == 0 ? spec.rows : spec.rows / spec.groups.rows * spec.groups.every;
}

std::vector<int64_t> due_shape(const WeightSpec& spec, const SourceTensor& tensor) {
  if (spec.shape == WeightShape::matrix) return {source_rows(spec), spec.cols};
  if (spec.form != VectorForm::taps) return {source_rows(spec)};
  const int64_t channels = spec.rows / spec.taps;
  if (tensor.shape.size() == 2) return {channels, spec.taps};
  return {channels, 1, spec.taps};
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
  return "[" + text + "]";
}

float in_form(VectorForm form, float value) {
  if (form == VectorForm::one_plus) return 1.0f + value;
  return form == VectorForm::minus_exp ? -std::exp(value) : value;
}

struct Difference {
  double max_abs = 0;
  double squares = 0;
  double reference_squares = 0;
};

void accumulate(Difference* total, const float* kept, const float* exact, int64_t cols) {
  for (int64_t i = 0; i < cols; ++i) {
    const double difference = static_cast<double>(kept[i]) - static_cast<double>(exact[i]);
    total->max_abs = std::max(total->max_abs, std::abs(difference));
    total->squares += difference * difference;
    total->reference_squares += static_cast<double>(exact[i]) * static_cast<double>(exact[i]);
  }
}

}  // namespace

// Packs the weights of a model one after the other, the panels of each in parallel.
class WeightStore::Packer {
 public:
  // errors null: tensors will be packed again, so they are neither measured nor released.
  Packer(const TensorSource& source, ThreadPool& pool, Progress progress, size_t total_bytes,
         std::vector<RepackError>* errors)
      : source_(source),
        pool_(pool),
        progress_(std::move(progress)),
        total_bytes_(total_bytes),
        errors_(errors),
        scratch_(static_cast<size_t>(pool.size())) {}

  void pack(const BlobSpec& spec, const BlobLayout& layout, std::byte* blob) {
    for (size_t i = 0; i < spec.size(); ++i) {
      if (spec[i].rows == 0) continue;
      const SourceTensor* tensor = source_.find(spec[i].source);
      CHECK(tensor != nullptr, spec[i].source);
      check_shape(spec[i], *tensor);
      if (spec[i].shape == WeightShape::vector) {
        pack_vector(spec[i], layout.places[i], *tensor, blob);
      } else {
        pack_matrix(spec[i], layout.places[i], *tensor, blob);
      }
      if (errors_ != nullptr) source_.release(*tensor);
    }
    done_bytes_ += layout.bytes;
    const auto last = std::find_if(spec.rbegin(), spec.rend(),
                                   [](const WeightSpec& weight) { return !weight.name.empty(); });
    if (progress_ && last != spec.rend()) {
      progress_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_), last->name);
    }
  }

 private:
  struct Scratch {
    std::vector<float> exact;  // [cols]
    std::vector<float> kept;   // [cols]
    Difference difference;
  };

  static void check_shape(const WeightSpec& spec, const SourceTensor& tensor) {
    const std::vector<int64_t> due = due_shape(spec, tensor);
    if (tensor.shape == due) return;
    throw Error(ErrorCode::corrupt, tensor.file + ": tensor " + tensor.name + ": shape " +
                                        text_of(tensor.shape) + "; due is " + text_of(due));
  }

  static void pack_vector(const WeightSpec& spec, const WeightPlace& place, const SourceTensor& tensor,
                          std::byte* blob) {
    auto* kept = reinterpret_cast<float*>(blob + place.device_offset);
    if (spec.form == VectorForm::taps) return pack_taps(spec, tensor, kept);
    std::vector<float> values(static_cast<size_t>(source_rows(spec)));
    read_row(tensor, 0, values.data());
    for (int64_t row = 0; row < spec.rows; ++row) {
      kept[row] = in_form(spec.form, values[static_cast<size_t>(source_row(spec, row))]);
    }
  }

  static void pack_taps(const WeightSpec& spec, const SourceTensor& tensor,
                        float* kept /*[taps, channels]*/) {
    const int64_t channels = spec.rows / spec.taps;
    std::vector<float> values(static_cast<size_t>(spec.taps));
    for (int64_t channel = 0; channel < channels; ++channel) {
      read_row(tensor, channel, values.data());
      for (int64_t tap = 0; tap < spec.taps; ++tap) {
        kept[tap * channels + channel] = values[static_cast<size_t>(tap)];
      }
    }
  }

  void pack_matrix(const WeightSpec& spec, const WeightPlace& place, const SourceTensor& tensor,
                   std::byte* blob) {
    const bool lossless = errors_ == nullptr || packs_losslessly(tensor, spec.format);
    for (Scratch& scratch : scratch_) {
      scratch.exact.resize(static_cast<size_t>(spec.cols));
      scratch.kept.resize(static_cast<size_t>(spec.cols));
      scratch.difference = {};
    }
    const int64_t panels = (spec.rows + kPanelRows - 1) / kPanelRows;
    pool_.parallel_for(panels, [&](int64_t panel, int worker) {
      pack_panel(spec, place, tensor, blob, panel, lossless, &scratch_[static_cast<size_t>(worker)]);
    });
    if (!lossless) record_difference(spec);
  }

  static void pack_panel(const WeightSpec& spec, const WeightPlace& place, const SourceTensor& tensor,
                         std::byte* blob, int64_t panel, bool lossless, Scratch* scratch) {
    const size_t bytes = panel_bytes(spec.format, spec.cols);
    const int64_t device_panels = (place.device_rows + kPanelRows - 1) / kPanelRows;
    std::byte* data = panel < device_panels
                          ? blob + place.device_offset + static_cast<size_t>(panel) * bytes
                          : blob + place.host_offset + static_cast<size_t>(panel - device_panels) * bytes;
    const int64_t end = std::min((panel + 1) * kPanelRows, spec.rows);
    std::memset(data, 0, bytes);
    for (int64_t row = panel * kPanelRows; row < end; ++row) {
      pack_tensor_row(tensor, source_row(spec, row), spec.format, row, scratch->exact.data(), data);
    }
    if (lossless) return;
    const PackedMatrix packed{spec.format, end - panel * kPanelRows, spec.cols, data};
    for (int64_t row = panel * kPanelRows; row < end; ++row) {
      read_row(tensor, source_row(spec, row), scratch->exact.data());
      unpack_row(packed, row - panel * kPanelRows, scratch->kept.data());
      accumulate(&scratch->difference, scratch->kept.data(), scratch->exact.data(), spec.cols);
    }
  }

  void record_difference(const WeightSpec& spec) {
    Difference sum;
    for (const Scratch& scratch : scratch_) {
      sum.max_abs = std::max(sum.max_abs, scratch.difference.max_abs);
      sum.squares += scratch.difference.squares;
      sum.reference_squares += scratch.difference.reference_squares;
    }
    if (sum.squares == 0) return;
    errors_->push_back({spec.name, spec.format, sum.max_abs, std::sqrt(sum.squares / sum.reference_squares)});
  }

  const TensorSource& source_;
  ThreadPool& pool_;
  Progress progress_;
  size_t total_bytes_;
  size_t done_bytes_ = 0;
  std::vector<RepackError>* errors_;
  std::vector<Scratch> scratch_;  // [pool size]
};

namespace {

// Pins each blob while the next one is packed.
class Pinning {
 public:
  Pinning(Device& device, WeightStore::Unpinned* unpinned) : device_(device), unpinned_(unpinned) {}

  void begin(const Buffer& blob) {
    finish();
    if (blob.size() == 0) return;
    bytes_ = blob.size();
    why_ = std::async(std::launch::async, [this, data = blob.data()] {
      std::string why;
      return device_.pin(data, &why) ? std::string() : why;
    });
  }
  void finish() {
    if (!why_.valid()) return;
    const std::string why = why_.get();
    if (why.empty()) return;
    unpinned_->bytes += bytes_;
    unpinned_->why = why;
  }

 private:
  Device& device_;
  WeightStore::Unpinned* unpinned_;
  std::future<std::string> why_;  // empty: it is pinned
  size_t bytes_ = 0;
};

}  // namespace

// What packs layers during passes: its pool is its own, so that it does not wait for what computes.
struct WeightStore::Fetcher {
  Fetcher(const TensorSource& source, std::vector<BlobSpec> of_layers, int threads)
      : specs(std::move(of_layers)), pool(threads), packer(source, pool, {}, 0, nullptr) {}
  std::vector<BlobSpec> specs;
  ThreadPool pool;
  Packer packer;
};

WeightStore::~WeightStore() = default;

WeightStore::WeightStore(Device& device, const TensorSource& source, const ModelWeights& weights,
                         StoreLayout layout, ThreadPool& pool, const Progress& progress, WeightHome home)
    : layout_(std::move(layout)) {
  const bool in_file = home == WeightHome::file;
  const size_t total = in_file ? layout_.vocabulary_bytes() : layout_.bytes();
  Packer packer(source, pool, progress, total, &repack_errors_);
  Pinning pinning(device, &unpinned_);
  const auto make = [&](const BlobSpec& spec, const BlobLayout& place) {
    Buffer blob = device.allocate(place.bytes, MemorySpace::plain);
    packer.pack(spec, place, blob.data());
    pinning.begin(blob);
    return blob;
  };
  embedding_ = make(weights.embedding, layout_.embedding);
  if (in_file) {
    fetcher_ = std::make_unique<Fetcher>(source, weights.layers, pool.size());
  } else {
    layers_.reserve(weights.layers.size());  // a blob that is being pinned has a place to go
    for (size_t i = 0; i < weights.layers.size(); ++i)
      layers_.push_back(make(weights.layers[i], layout_.layers[i]));
  }
  final_norm_ = make(weights.final_norm, layout_.final_norm);
  lm_head_ = make(weights.lm_head, layout_.lm_head);
  pinning.finish();
}

void WeightStore::pack_layer(int64_t layer, std::byte* blob) const {
  const BlobLayout& place = layer_layout(layer);
  CHECK(place.bytes == place.device_bytes, "rows of the host have no home");
  fetcher_->packer.pack(fetcher_->specs[static_cast<size_t>(layer)], place, blob);
}

PackedMatrix WeightStore::embedding() const {
  return split_matrix(layout_.embedding.places.front(), embedding_.data(), embedding_.data(), nullptr).device;
}

PackedMatrix WeightStore::lm_head() const {
  if (layout_.lm_head.places.empty()) return embedding();
  return split_matrix(layout_.lm_head.places.front(), lm_head_.data(), lm_head_.data(), nullptr).device;
}

const float* WeightStore::final_norm() const { return final_norm_.as<const float>(); }

SplitMatrix split_matrix(const WeightPlace& place, const std::byte* device_base, const std::byte* home,
                         const std::byte* rest_base) {
  const int64_t others = place.rows - place.device_rows;
  SplitMatrix matrix{
      .device = {place.format, place.device_rows, place.cols, device_base + place.device_offset},
      .host = {place.format, others, place.cols, home + place.host_offset},
      .rest = {}};
  if (rest_base != nullptr) matrix.rest = {place.format, others, place.cols, rest_base + place.host_offset};
  return matrix;
}

}  // namespace ete
