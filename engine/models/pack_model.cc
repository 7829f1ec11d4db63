#include "engine/models/pack_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/models/pack_directory.h"
#include "engine/models/pack_plan.h"
#include "engine/ops/pack_integers.h"
#include "engine/ops/quantise.h"
#include "engine/weights/checkpoint_writer.h"
#include "engine/weights/mapped_file.h"

namespace ete {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;  // of the source, read and written at once

// One thread's.
struct Scratch {
  std::vector<float> values;  // [cols]
  std::vector<int8_t> q;      // [cols]
  std::vector<float> scales;  // [scales of a row]
  QuantisationError error;
};

// Two buffers in turn: one is filled while the other is written.
class WriteBehind {
 public:
  explicit WriteBehind(CheckpointWriter& writer) : writer_(writer) {}
  ~WriteBehind() {
    if (pending_.valid()) pending_.wait();
  }
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  std::vector<std::byte>& to_fill() { return buffers_[turn_]; }
  // What was filled. Throws what the writing of the buffer before threw.
  void write() {
    finish();
    pending_ = std::async(std::launch::async,
                          [this, &data = std::as_const(buffers_[turn_])] { writer_.write(data); });
    turn_ = 1 - turn_;
  }
  void finish() {
    if (pending_.valid()) pending_.get();
  }

 private:
  CheckpointWriter& writer_;
  std::vector<std::byte> buffers_[2];
  size_t turn_ = 0;
  std::future<void> pending_;
};

void append(std::span<const std::byte> bytes, std::vector<std::byte>* to) {
  to->insert(to->end(), bytes.begin(), bytes.end());
}

// Writes the tensors of a plan one after the other.
class Packer {
 public:
  Packer(ThreadPool& pool, CheckpointWriter& writer)
      : pool_(pool), writer_(writer), behind_(writer), scratch_(static_cast<size_t>(pool.size())) {}

  PackedTensor write(const PackItem& item) {
    PackedTensor report{.name = item.name, .shape = item.shape, .is_quantised = item.is_quantised()};
    if (item.is_quantised()) {
      const QuantisationError sum = write_quantised(item);
      report.max_abs = sum.max_abs;
      if (sum.reference_squares > 0) report.relative_rms = std::sqrt(sum.squares / sum.reference_squares);
    } else if (item.is_raw) {
      write_raw(*item.source);
    } else {
      write_values(item);
    }
    return report;
  }
  void finish() { behind_.finish(); }

 private:
  void write_raw(const SourceTensor& source) {
    behind_.finish();
    for (size_t begin = 0; begin < source.data_bytes; begin += kSlabBytes) {
      const size_t count = std::min(kSlabBytes, source.data_bytes - begin);
      writer_.write({source.data + begin, count});
      drop_pages(source.data + begin, count);
    }
  }

  // Rows as f32: what a GGUF file holds in another form.
  void write_values(const PackItem& item) {
    behind_.finish();
    const int64_t cols = item.cols();
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t row = 0; row < item.rows(); ++row) {
      read_item_row(item, row, values.data());
      writer_.write(std::as_bytes(std::span(values)));
    }
    drop_pages(item.source->data, item.source->data_bytes);
  }

  QuantisationError write_quantised(const PackItem& item) {
    const int64_t cols = item.cols();
    const WeightFormat format = *item.format;
    for (Scratch& scratch : scratch_) {
      scratch.values.resize(static_cast<size_t>(cols));
      scratch.q.resize(static_cast<size_t>(cols));
      scratch.scales.resize(static_cast<size_t>(cols / scale_cols(format, cols)));
      scratch.error = {};
    }
    const size_t source_row = item.source->data_bytes / static_cast<size_t>(item.rows());
    const int64_t slab = std::max<int64_t>(static_cast<int64_t>(kSlabBytes / source_row), 16);
    std::vector<std::byte> scales(static_cast<size_t>(item.rows()) * item.scale_row_bytes());
    for (int64_t begin = 0; begin < item.rows(); begin += slab) {
      const int64_t count = std::min(slab, item.rows() - begin);
      std::vector<std::byte>& integers = behind_.to_fill();
      integers.resize(static_cast<size_t>(count) * item.integer_row_bytes());
      pool_.parallel_for(count, [&](int64_t i, int worker) {
        Scratch& scratch = scratch_[static_cast<size_t>(worker)];
        quantise(item, begin + i, &scratch);
        item.store_integers(scratch.q, integers.data() + static_cast<size_t>(i) * item.integer_row_bytes());
        item.store_scales(scratch.scales,
                          scales.data() + static_cast<size_t>(begin + i) * item.scale_row_bytes());
      });
      behind_.write();
      drop_pages(item.source->data + static_cast<size_t>(begin) * source_row,
                 static_cast<size_t>(count) * source_row);
    }
    std::vector<std::byte>& rest = behind_.to_fill();
    rest.clear();
    append(scales, &rest);
    if (item.is_packed()) append(std::as_bytes(std::span(item.shape)), &rest);
    behind_.write();
    QuantisationError sum;
    for (const Scratch& scratch : scratch_) sum.add(scratch.error);
    return sum;
  }

  static void quantise(const PackItem& item, int64_t row, Scratch* scratch) try {
    const int64_t cols = item.cols();
    read_item_row(item, row, scratch->values.data());
    quantise_row(*item.format, scratch->values.data(), cols, scratch->q.data(), scratch->scales.data());
    const int64_t width = scale_cols(*item.format, cols);
    for (int64_t first = 0; first < cols; first += width) {
      scratch->error.add(quantise_loops().compare(scratch->values.data() + first, width,
                                                  scratch->scales[static_cast<size_t>(first / width)],
                                                  scratch->q.data() + first));
    }
  } catch (const Error& error) {
    throw Error(error.code(), item.source->file + ": tensor " + item.source->name + ", row " +
                                  std::to_string(row) + ": " + error.what());
  }

  ThreadPool& pool_;
  CheckpointWriter& writer_;
  WriteBehind behind_;
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
  packer.finish();
  writer.finish();
  directory.commit();
  report.bytes = writer.total_bytes();
  return report;
}

}  // namespace ete
