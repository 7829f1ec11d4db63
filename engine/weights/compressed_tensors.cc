#include "engine/weights/compressed_tensors.h"

#include <cstring>
#include <deque>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/integer_code.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPacked = ".weight_packed";
constexpr std::string_view kScale = ".weight_scale";
constexpr std::string_view kShape = ".weight_shape";

[[noreturn]] void fail(ErrorCode code, const SourceTensor& tensor, const std::string& what) {
  throw Error(code, tensor.file + ": tensor " + printable(tensor.name) + " " + what);
}

bool is_float(SourceType type) {
  return type == SourceType::f32 || type == SourceType::f16 || type == SourceType::bf16;
}

// rows and cols of a packed weight: X.weight_shape, I64 [2].
std::pair<int64_t, int64_t> logical_shape(const SourceTensor& packed, const SourceTensor* shape) {
  if (shape == nullptr) fail(ErrorCode::corrupt, packed, "has no weight_shape beside it");
  int64_t extents[2];
  if (shape->type != SourceType::i64 || shape->data_bytes != sizeof extents) {
    fail(ErrorCode::corrupt, *shape, "must be I64 of shape [2]");
  }
  std::memcpy(extents, shape->data, sizeof extents);
  return {extents[0], extents[1]};
}

class CompressedTensors final : public TensorSource {
 public:
  CompressedTensors(std::shared_ptr<const TensorSource> source, const SchemeOf& scheme_of)
      : source_(std::move(source)) {
    for (const SourceTensor* tensor : source_->all()) by_base_name_.emplace(tensor->name, tensor);
    for (const SourceTensor* tensor : source_->all()) combine(*tensor, scheme_of);
    for (const SourceTensor* tensor : source_->all()) {
      if (!parts_.contains(tensor)) tensors_.push_back(*tensor);
    }
    for (const SourceTensor& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
    by_base_name_.clear();
    parts_.clear();
  }

  const SourceTensor* find(std::string_view name) const override {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  std::vector<const SourceTensor*> all() const override {
    std::vector<const SourceTensor*> all;
    for (const SourceTensor& tensor : tensors_) all.push_back(&tensor);
    return all;
  }
  void release(const SourceTensor& tensor) const override {
    source_->release(tensor);
    if (tensor.code) source_->release(tensor.code->scales);
  }

 private:
  const SourceTensor* at_base(const std::string& name) const {
    const auto found = by_base_name_.find(name);
    return found == by_base_name_.end() ? nullptr : found->second;
  }

  // Adds the module's matrix if `stored` is what holds its integers.
  void combine(const SourceTensor& stored, const SchemeOf& scheme_of) {
    const std::string_view name = stored.name;
    const bool is_packed = name.ends_with(kPacked);
    if (!is_packed && !(name.ends_with(kWeight) && stored.type == SourceType::i8)) return;
    const std::string module(name.substr(0, name.size() - (is_packed ? kPacked : kWeight).size()));
    const auto scheme = scheme_of(module);
    if (!scheme) fail(ErrorCode::corrupt, stored, "is quantised, but quantization_config does not say so");
    if (scheme->is_packed != is_packed) {
      fail(ErrorCode::corrupt, stored,
           std::string("is not what format ") + (scheme->is_packed ? "pack-quantized" : "int-quantized") +
               " stores");
    }
    SourceTensor whole = stored;
    whole.name = module + std::string(kWeight);
    whole.type = SourceType::integers;
    IntegerCode code;
    code.bits = scheme->bits;
    code.is_packed = is_packed;
    const SourceTensor* shape = at_base(module + std::string(kShape));
    set_shape(stored, shape, code, &whole);
    add_scales(stored, module, *scheme, whole, &code);
    whole.code = std::make_shared<const IntegerCode>(std::move(code));
    parts_.insert(&stored);
    if (shape != nullptr) parts_.insert(shape);
    tensors_.push_back(std::move(whole));
  }

  static void set_shape(const SourceTensor& stored, const SourceTensor* shape, const IntegerCode& code,
                        SourceTensor* whole) {
    if (stored.shape.size() != 2) fail(ErrorCode::corrupt, stored, "is no matrix");
    if (!code.is_packed) return;
    if (stored.type != SourceType::i32) fail(ErrorCode::corrupt, stored, "must be I32");
    const auto [rows, cols] = logical_shape(stored, shape);
    constexpr int64_t kMaxCols = int64_t{1} << 32;
    if (rows != stored.shape[0] || cols < 1 || cols > kMaxCols ||
        code.row_bytes(cols) * static_cast<size_t>(rows) != stored.data_bytes) {
      fail(ErrorCode::corrupt, *shape,
           "says [" + std::to_string(rows) + ", " + std::to_string(cols) +
               "], which weight_packed of shape [" + std::to_string(stored.shape[0]) + ", " +
               std::to_string(stored.shape[1]) + "] and " + std::to_string(code.bits) + " bits contradict");
    }
    whole->shape = {rows, cols};
  }

  void add_scales(const SourceTensor& stored, const std::string& module, const IntegerScheme& scheme,
                  const SourceTensor& whole, IntegerCode* code) {
    const SourceTensor* scales = at_base(module + std::string(kScale));
    if (scales == nullptr) fail(ErrorCode::corrupt, stored, "has no weight_scale beside it");
    const int64_t cols = whole.shape[1];
    code->group_cols = scheme.group_cols == 0 ? cols : scheme.group_cols;
    if (cols < 1 || cols % code->group_cols != 0) {
      fail(ErrorCode::unsupported, stored,
           "has " + std::to_string(cols) + " columns, which group_size " + std::to_string(code->group_cols) +
               " does not divide");
    }
    const std::vector<int64_t> due = {whole.shape[0], cols / code->group_cols};
    if (!is_float(scales->type) || scales->shape != due) {
      fail(ErrorCode::corrupt, *scales,
           "must hold floats of shape [" + std::to_string(due[0]) + ", " + std::to_string(due[1]) + "]");
    }
    code->scales = *scales;
    parts_.insert(scales);
  }

  std::shared_ptr<const TensorSource> source_;
  std::deque<SourceTensor> tensors_;
  std::unordered_map<std::string_view, const SourceTensor*> by_name_;  // keys live in tensors_
  // While the tensors are combined: the source's, and which of them are parts of another.
  std::unordered_map<std::string, const SourceTensor*> by_base_name_;
  std::unordered_set<const SourceTensor*> parts_;
};

}  // namespace

std::shared_ptr<const TensorSource> open_compressed(std::shared_ptr<const TensorSource> source,
                                                    const SchemeOf& scheme_of) {
  return std::make_shared<CompressedTensors>(std::move(source), scheme_of);
}

}  // namespace ete
