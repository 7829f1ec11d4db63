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
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

static_assert(std::endian::native == std::endian::little,
              "both file formats are little-endian and read in place");

constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's bound
constexpr size_t kMaxIndexBytes = 64u << 20;
constexpr size_t kMaxRank = 8;

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

int64_t count_from(const nlohmann::json& value, const std::string& place, const char* field) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
    corrupt(place,
            std::string(field) + " holds " + printable(value.dump()) + " where a whole number >= 0 is due");
  }
  return value.get<int64_t>();
}

const nlohmann::json& member(const nlohmann::json& entry, const std::string& place, const char* field) {
  const auto found = entry.find(field);
  if (found == entry.end()) corrupt(place, std::string(field) + " is missing");
  return *found;
}

SourceTensor parse_entry(const std::string& name, const nlohmann::json& entry,
                         std::span<const std::byte> data, const std::string& file_name) {
  const std::string place = file_name + ": tensor " + printable(name);
  if (!entry.is_object()) corrupt(place, "the header's entry is not an object");
  const nlohmann::json& dtype = member(entry, place, "dtype");
  const nlohmann::json& shape = member(entry, place, "shape");
  const nlohmann::json& offsets = member(entry, place, "data_offsets");
  if (!dtype.is_string()) corrupt(place, "dtype is not a string");
  if (!shape.is_array() || shape.size() > kMaxRank) {
    corrupt(place, "shape is not a list of at most " + std::to_string(kMaxRank) + " extents");
  }
  if (!offsets.is_array() || offsets.size() != 2) corrupt(place, "data_offsets is not a list of two offsets");

  SourceTensor tensor;
  tensor.name = name;
  tensor.file = file_name;
  tensor.type = type_from(dtype.get_ref<const std::string&>(), place);
  std::optional<int64_t> bytes = static_cast<int64_t>(block_bytes(tensor.type));
  for (const nlohmann::json& extent : shape) {
    tensor.shape.push_back(count_from(extent, place, "shape"));
    bytes = checked_product(*bytes, tensor.shape.back());
    if (!bytes) corrupt(place, "shape " + printable(shape.dump()) + " overflows");
  }
  const int64_t begin = count_from(offsets[0], place, "data_offsets");
  const int64_t end = count_from(offsets[1], place, "data_offsets");
  if (begin > end || static_cast<size_t>(end) > data.size()) {
    corrupt(place, "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) +
                       "] lie outside the " + std::to_string(data.size()) + " bytes of data in the file");
  }
  if (end - begin != *bytes) {
    corrupt(place, "data_offsets span " + std::to_string(end - begin) + " bytes, but the size of " +
                       dtype.get_ref<const std::string&>() + " " + printable(shape.dump()) + " is " +
                       std::to_string(*bytes));
  }
  tensor.data = data.data() + begin;
  tensor.data_bytes = static_cast<size_t>(*bytes);
  return tensor;
}

void order_and_refuse_overlaps(std::vector<SourceTensor>& tensors, const std::string& file_name) {
  std::sort(tensors.begin(), tensors.end(), [](const SourceTensor& a, const SourceTensor& b) {
    return std::pair(a.data, a.data_bytes) < std::pair(b.data, b.data_bytes);
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i - 1].data + tensors[i - 1].data_bytes > tensors[i].data) {
      corrupt(file_name, "data_offsets of tensors " + printable(tensors[i - 1].name) + " and " +
                             printable(tensors[i].name) + " overlap");
    }
  }
}

void add_file(MappedTensors& tensors, const std::filesystem::path& path) {
  auto file = std::make_shared<const MappedFile>(path.string());
  tensors.add(file, parse_safetensors(file->bytes(), path.filename().string()));
}

std::shared_ptr<const TensorSource> open_shards(const std::filesystem::path& directory,
                                                const std::filesystem::path& index_path) {
  const std::string index_name = index_path.filename().string();
  const auto weight_map = parse_safetensors_index(read_file(index_path.string(), kMaxIndexBytes), index_name);
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
  const nlohmann::json header =
      parse_json(header_text, file_name + " (header)", {.max_bytes = kMaxHeaderBytes, .max_depth = 4});
  if (!header.is_object()) corrupt(file_name, "the header is not a JSON object");
  std::vector<SourceTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") tensors.push_back(parse_entry(name, entry, data, file_name));
  }
  order_and_refuse_overlaps(tensors, file_name);
  return tensors;
}

std::map<std::string, std::string> parse_safetensors_index(std::string_view json,
                                                           const std::string& file_name) {
  const nlohmann::json index = parse_json(json, file_name, {.max_bytes = kMaxIndexBytes, .max_depth = 8});
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
