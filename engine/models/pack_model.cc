#include "engine/models/pack_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/pack_directory.h"
#include "engine/models/pack_plan.h"
#include "engine/ops/pack_integers.h"
#include "engine/weights/checkpoint_writer.h"
#include "engine/weights/mapped_file.h"

namespace ete {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;  // of the source, read and written at once

struct Difference {
  double max_abs = 0;
  double squares = 0;
  double reference_squares = 0;

  // scale * q [count] against exact [count], in lanes that a compiler may turn into vectors.
  void add(float scale, const int8_t* q, const float* exact, int64_t count) {
    constexpr int64_t kLanes = 8;
    double most[kLanes] = {};
    double sum[kLanes] = {};
    double reference[kLanes] = {};
    for (int64_t first = 0; first < count; first += kLanes) {
      for (int64_t lane = 0; lane < std::min(kLanes, count - first); ++lane) {
        const double value = exact[first + lane];
        const double difference = std::abs(static_cast<double>(scale * q[first + lane]) - value);
        most[lane] = most[lane] < difference ? difference : most[lane];
        sum[lane] += difference * difference;
        reference[lane] += value * value;
      }
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) add(Difference{most[lane], sum[lane], reference[lane]});
  }
  void add(const Difference& other) {
    max_abs = std::max(max_abs, other.max_abs);
    squares += other.squares;
    reference_squares += other.reference_squares;
  }
};

// One thread's.
struct Scratch {
  std::vector<float> values;     // [cols]
  std::vector<std::byte> panel;  // of 16 rows, the first is used
  std::vector<int8_t> q;         // [cols]
  std::vector<float> scales;     // [scales of a row]
  Difference difference;
};

// Writes the tensors of a plan one after the other.
class Packer {
 public:
  Packer(ThreadPool& pool, CheckpointWriter& writer)
      : pool_(pool), writer_(writer), scratch_(static_cast<size_t>(pool.size())) {}

  PackedTensor write(const PackItem& item) {
    PackedTensor report{.name = item.name, .shape = item.shape, .is_quantised = item.is_quantised()};
    if (item.is_quantised()) {
      const Difference sum = write_quantised(item);
      report.max_abs = sum.max_abs;
      if (sum.reference_squares > 0) report.relative_rms = std::sqrt(sum.squares / sum.reference_squares);
    } else if (item.is_raw) {
      write_raw(*item.source);
    } else {
      write_values(item);
    }
    return report;
  }

 private:
  void write_raw(const SourceTensor& source) {
    for (size_t begin = 0; begin < source.data_bytes; begin += kSlabBytes) {
      const size_t count = std::min(kSlabBytes, source.data_bytes - begin);
      writer_.write({source.data + begin, count});
      drop_pages(source.data + begin, count);
    }
  }

  // Rows as f32: what a GGUF file holds in another form.
  void write_values(const PackItem& item) {
    const int64_t cols = item.cols();
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t row = 0; row < item.rows(); ++row) {
      read_item_row(item, row, values.data());
      writer_.write(std::as_bytes(std::span(values)));
    }
    drop_pages(item.source->data, item.source->data_bytes);
  }

  Difference write_quantised(const PackItem& item) {
    const int64_t cols = item.cols();
    const WeightFormat format = *item.format;
    for (Scratch& scratch : scratch_) {
      scratch.values.resize(static_cast<size_t>(cols));
      scratch.q.resize(static_cast<size_t>(cols));
      scratch.scales.resize(static_cast<size_t>(cols / scale_cols(format, cols)));
      scratch.panel.assign(panel_bytes(format, cols), std::byte{0});
      scratch.difference = {};
    }
    const size_t source_row = item.source->data_bytes / static_cast<size_t>(item.rows());
    const int64_t slab = std::max<int64_t>(static_cast<int64_t>(kSlabBytes / source_row), 16);
    std::vector<std::byte> integers;
    std::vector<std::byte> scales(static_cast<size_t>(item.rows()) * item.scale_row_bytes());
    for (int64_t begin = 0; begin < item.rows(); begin += slab) {
      const int64_t count = std::min(slab, item.rows() - begin);
      integers.resize(static_cast<size_t>(count) * item.integer_row_bytes());
      pool_.parallel_for(count, [&](int64_t i, int worker) {
        Scratch& scratch = scratch_[static_cast<size_t>(worker)];
        quantise_row(item, begin + i, &scratch);
        item.store_integers(scratch.q, integers.data() + static_cast<size_t>(i) * item.integer_row_bytes());
        item.store_scales(scratch.scales,
                          scales.data() + static_cast<size_t>(begin + i) * item.scale_row_bytes());
      });
      writer_.write(integers);
      drop_pages(item.source->data + static_cast<size_t>(begin) * source_row,
                 static_cast<size_t>(count) * source_row);
    }
    writer_.write(scales);
    if (item.is_packed()) writer_.write(std::as_bytes(std::span(item.shape)));
    Difference sum;
    for (const Scratch& scratch : scratch_) sum.add(scratch.difference);
    return sum;
  }

  static void quantise_row(const PackItem& item, int64_t row, Scratch* scratch) try {
    const int64_t cols = item.cols();
    read_item_row(item, row, scratch->values.data());
    pack_row(*item.format, scratch->values.data(), 0, cols, scratch->panel.data());
    unpack_integers(*item.format, scratch->panel.data(), 0, cols, scratch->q.data(), scratch->scales.data());
    const int64_t width = scale_cols(*item.format, cols);
    for (int64_t first = 0; first < cols; first += width) {
      scratch->difference.add(scratch->scales[static_cast<size_t>(first / width)], scratch->q.data() + first,
                              scratch->values.data() + first, width);
    }
  } catch (const Error& error) {
    throw Error(error.code(), item.source->file + ": tensor " + item.source->name + ", row " +
                                  std::to_string(row) + ": " + error.what());
  }

  ThreadPool& pool_;
  CheckpointWriter& writer_;
  std::vector<Scratch> scratch_;  // [pool size]
};

}  // namespace

PackReport pack_model(const PackOptions& options, ThreadPool& pool, const PackProgress& progress) {
  OutputDirectory directory(options.out);
  const ModelFiles model = open_model(options.model, options.accept_unknown);
  const PackPlan plan = plan_pack(model, options);
  write_descriptions(model, plan, directory.partial());
  PackReport report;
  CheckpointWriter writer(directory.partial(), plan.tensors, options.max_shard_bytes);
  Packer packer(pool, writer);
  uint64_t total = 0;
  for (const PackItem& item : plan.items) total += item.source->data_bytes;
  uint64_t done = 0;
  for (const PackItem& item : plan.items) {
    if (progress) progress(static_cast<double>(done) / static_cast<double>(total), item.name);
    report.tensors.push_back(packer.write(item));
    done += item.source->data_bytes;
  }
  writer.finish();
  directory.commit();
  report.bytes = writer.total_bytes();
  return report;
}

}  // namespace ete
