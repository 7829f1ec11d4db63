#include "engine/weights/safetensors_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/mapped_tensors.h"
#include "engine/weights/safetensors_header.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

static_assert(std::endian::native == std::endian::little,
              "both file formats are little-endian and read in place");

// The reference implementation reads headers up to 100 MB. A tensor takes about 125 bytes: this is room for
// 130,000 in one file. DeepSeek-V3, of 671 billion parameters, has 92,000, in 163 files whose headers are
// below 100 KB each; its index is 8.9 MB.
constexpr size_t kMaxHeaderBytes = size_t{16} << 20;
constexpr JsonLimits kIndexLimits{.max_bytes = size_t{32} << 20, .max_depth = 8, .max_values = 1'000'000};

[[noreturn]] void corrupt(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::corrupt, file + ": " + what);
}

SourceType type_from(const std::string& dtype, const std::string& place) {
  static const std::map<std::string_view, SourceType> kTypes = {
      {"F32", SourceType::f32},     {"F16", SourceType::f16}, {"BF16", SourceType::bf16},
      {"F64", SourceType::f64},     {"I8", SourceType::i8},   {"U8", SourceType::u8},
      {"I16", SourceType::i16},     {"I32", SourceType::i32}, {"I64", SourceType::i64},
      {"BOOL", SourceType::boolean}};
  const auto found = kTypes.find(dtype);
  if (found == kTypes.end()) {
    throw Error(ErrorCode::unsupported,
                place + ": dtype " + printable(dtype) + " is not supported; F32, F16 and BF16 weights are");
  }
  return found->second;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += (text.empty() ? "[" : ",") + std::to_string(extent);
  return text.empty() ? "[]" : text + "]";
}

// Takes the entry's name and shape.
SourceTensor tensor_from(SafetensorsEntry& entry, std::span<const std::byte> data,
                         const std::string& file_name) {
  const std::string place = file_name + ": tensor " + printable(entry.name);
  SourceTensor tensor;
  tensor.type = type_from(entry.dtype, place);
  std::optional<int64_t> bytes = static_cast<int64_t>(block_bytes(tensor.type));
  for (const int64_t extent : entry.shape) {
    bytes = checked_product(*bytes, extent);
    if (!bytes) corrupt(place, "shape " + shape_text(entry.shape) + " overflows");
  }
  if (entry.begin > entry.end || static_cast<size_t>(entry.end) > data.size()) {
    corrupt(place, "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) +
                       "] lie outside the " + std::to_string(data.size()) + " bytes of data in the file");
  }
  if (entry.end - entry.begin != *bytes) {
    corrupt(place, "data_offsets span " + std::to_string(entry.end - entry.begin) +
                       " bytes, but the size of " + entry.dtype + " " + shape_text(entry.shape) + " is " +
                       std::to_string(*bytes));
  }
  tensor.name = std::move(entry.name);
  tensor.file = file_name;
  tensor.shape = std::move(entry.shape);
  tensor.data = data.data() + entry.begin;
  tensor.data_bytes = static_cast<size_t>(*bytes);
  return tensor;
}

// The format allows neither overlaps nor bytes that no tensor owns.
void order_and_refuse_overlaps_and_holes(std::vector<SourceTensor>& tensors, std::span<const std::byte> data,
                                         const std::string& file_name) {
  std::sort(tensors.begin(), tensors.end(), [](const SourceTensor& a, const SourceTensor& b) {
    return std::pair(a.data, a.data_bytes) < std::pair(b.data, b.data_bytes);
  });
  const auto refuse_hole = [&](const std::byte* begin, const std::byte* end) {
    if (begin == end) return;
    corrupt(file_name, "bytes [" + std::to_string(begin - data.data()) + ", " +
                           std::to_string(end - data.data()) +
                           ") of the data belong to no tensor; safetensors has neither holes nor a rest");
  };
  const std::byte* end = data.data();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].data < end) {
      corrupt(file_name, "data_offsets of tensors " + printable(tensors[i - 1].name) + " and " +
                             printable(tensors[i].name) + " overlap");
    }
    refuse_hole(end, tensors[i].data);
    end = tensors[i].data + tensors[i].data_bytes;
  }
  refuse_hole(end, data.data() + data.size());
}

void add_file(MappedTensors& tensors, const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path.string());
  tensors.add(file, parse_safetensors(file->bytes(), path.filename().string()));
}

std::shared_ptr<const TensorSource> open_shards(const std::filesystem::path& directory,
                                                const std::filesystem::path& index_path) {
  const std::string index_name = index_path.filename().string();
  const auto weight_map =
      parse_safetensors_index(read_file(index_path.string(), kIndexLimits.max_bytes), index_name);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) shards.insert(shard);
  auto tensors = std::make_shared<MappedTensors>();
  for (const std::string& shard : shards) {
    if (!file_exists((directory / shard).string())) {
      throw Error(ErrorCode::not_found,
                  (directory / shard).string() + ": no such file, but " + index_name + " names this shard");
    }
    add_file(*tensors, directory / shard);
  }
  for (const auto& [name, shard] : weight_map) {
    const SourceTensor* tensor = tensors->find(name);
    if (tensor == nullptr || tensor->file != shard) {
      corrupt(index_name, "tensor " + printable(name) + " should be in " + shard + ", but is " +
                              (tensor == nullptr ? "in no shard" : "in " + tensor->file));
    }
  }
  for (const SourceTensor* tensor : tensors->all()) {
    if (!weight_map.contains(tensor->name)) {
      corrupt(index_name,
              "tensor " + printable(tensor->name) + " of " + tensor->file + " is not in weight_map");
    }
  }
  return tensors;
}

}  // namespace

std::vector<SourceTensor> parse_safetensors(std::span<const std::byte> file, const std::string& file_name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes) {
    corrupt(file_name, std::to_string(file.size()) + " bytes are too few for a safetensors header");
  }
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes > file.size() - sizeof header_bytes || header_bytes > kMaxHeaderBytes) {
    corrupt(file_name, "header length " + std::to_string(header_bytes) + " exceeds the file's " +
                           std::to_string(file.size()) + " bytes or the limit of " +
                           std::to_string(kMaxHeaderBytes));
  }
  const auto header_text = as_text(file.subspan(sizeof header_bytes, header_bytes));
  const auto data = file.subspan(sizeof header_bytes + header_bytes);
  std::vector<SourceTensor> tensors;
  for (SafetensorsEntry& entry : parse_safetensors_header(header_text, file_name)) {
    tensors.push_back(tensor_from(entry, data, file_name));
  }
  order_and_refuse_overlaps_and_holes(tensors, data, file_name);
  return tensors;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& file_name) {
  const nlohmann::json index = parse_json(json, file_name, kIndexLimits);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    corrupt(file_name, "weight_map is missing or not an object");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string())
      corrupt(file_name, "weight_map: the shard of " + printable(tensor) + " is not a string");
    const auto& name = shard.get_ref<const std::string&>();
    if (name.empty() || name == "." || name == ".." || name.find_first_of("/\\") != std::string::npos ||
        name.find('\0') != std::string::npos) {
      corrupt(file_name, "weight_map: shard \"" + printable(name) + "\" of " + printable(tensor) +
                             " is not the name of a file in the same directory");
    }
    weight_map.emplace(tensor, name);
  }
  if (weight_map.empty()) corrupt(file_name, "weight_map is empty");
  return weight_map;
}

std::shared_ptr<const TensorSource> open_safetensors(const std::string& directory) {
  const std::filesystem::path root(directory);
  const auto single = root / "model.safetensors";
  const auto index = root / "model.safetensors.index.json";
  if (file_exists(single.string())) {
    auto tensors = std::make_shared<MappedTensors>();
    add_file(*tensors, single);
    return tensors;
  }
  if (file_exists(index.string())) return open_shards(root, index);
  throw Error(
      ErrorCode::not_found,
      directory + ": no weights: neither model.safetensors nor model.safetensors.index.json is there");
}

}  // namespace ete
