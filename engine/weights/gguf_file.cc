#include "engine/weights/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/base/error.h"
#include "engine/weights/mapped_file.h"
#include "engine/weights/mapped_tensors.h"
#include "engine/weights/untrusted.h"

namespace ete {
namespace {

constexpr size_t kMaxName = 65535;  // keys; the format's own bound
constexpr int kMaxArrayDepth = 4;
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr int64_t kMaxParts = 99999;  // five digits in the file name

[[noreturn]] void corrupt(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::corrupt, file + ": " + what);
}

// Walks the header; every step is checked against the bytes that remain.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  // What is being read, for messages.
  void enter(std::string what) { what_ = std::move(what); }
  [[noreturn]] void fail(const std::string& why) const { corrupt(file_name_, what_ + ": " + why); }

  std::span<const std::byte> take(uint64_t n) {
    if (n > remaining()) {
      fail("needs " + std::to_string(n) + " bytes at offset " + std::to_string(position_) +
           ", but the file ends " + std::to_string(remaining()) + " bytes later");
    }
    const auto taken = bytes_.subspan(position_, n);
    position_ += n;
    return taken;
  }

  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  std::string_view string() { return as_text(take(number<uint64_t>())); }

  // A number of things that take at least min_size bytes each: a count that cannot fit is refused here, so
  // that it is safe to allocate for.
  uint64_t count(size_t min_size, const char* things) {
    const auto n = number<uint64_t>();
    if (n > remaining() / min_size) {
      fail(std::to_string(n) + " " + things + " cannot fit in the " + std::to_string(remaining()) +
           " bytes that follow");
    }
    return n;
  }

  GgufType type() {
    const auto type = number<uint32_t>();
    if (type > static_cast<uint32_t>(GgufType::f64)) {
      fail("value type " + std::to_string(type) + " is unknown; types 0 to 12 are defined");
    }
    return static_cast<GgufType>(type);
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_name_;
  size_t position_ = 0;
  std::string what_ = "header";
};

bool read_bool(Reader& reader) {
  const auto byte = reader.number<uint8_t>();
  if (byte > 1) reader.fail("a bool holds " + std::to_string(byte));
  return byte == 1;
}

GgufArray read_array(Reader& reader, std::span<const std::byte> file, int depth) {
  if (depth > kMaxArrayDepth) reader.fail("arrays nested deeper than " + std::to_string(kMaxArrayDepth));
  GgufArray array;
  array.element = reader.type();
  array.count = reader.count(min_bytes(array.element), "elements");
  const size_t begin = reader.position();
  if (array.element == GgufType::string) {
    for (uint64_t i = 0; i < array.count; ++i) reader.string();
  } else if (array.element == GgufType::array) {
    for (uint64_t i = 0; i < array.count; ++i) read_array(reader, file, depth + 1);
  } else if (array.element == GgufType::boolean) {
    for (uint64_t i = 0; i < array.count; ++i) read_bool(reader);
  } else {
    reader.take(array.count * min_bytes(array.element));
  }
  array.bytes = file.subspan(begin, reader.position() - begin);
  return array;
}

GgufValue read_value(Reader& reader, std::span<const std::byte> file) {
  switch (reader.type()) {
    case GgufType::u8:
      return uint64_t{reader.number<uint8_t>()};
    case GgufType::i8:
      return int64_t{reader.number<int8_t>()};
    case GgufType::u16:
      return uint64_t{reader.number<uint16_t>()};
    case GgufType::i16:
      return int64_t{reader.number<int16_t>()};
    case GgufType::u32:
      return uint64_t{reader.number<uint32_t>()};
    case GgufType::i32:
      return int64_t{reader.number<int32_t>()};
    case GgufType::u64:
      return reader.number<uint64_t>();
    case GgufType::i64:
      return reader.number<int64_t>();
    case GgufType::f32:
      return double{reader.number<float>()};
    case GgufType::f64:
      return reader.number<double>();
    case GgufType::boolean:
      return read_bool(reader);
    case GgufType::string:
      return reader.string();
    case GgufType::array:
      return read_array(reader, file, 1);
  }
  reader.fail("value type is unknown");
}

// GGML's type numbers (enum ggml_type of ggml.h), the ones that files hold.
SourceType tensor_type(uint32_t type, const std::string& place) {
  static const std::map<uint32_t, SourceType> kTypes = {
      {0, SourceType::f32},   {1, SourceType::f16},   {2, SourceType::q4_0}, {3, SourceType::q4_1},
      {6, SourceType::q5_0},  {7, SourceType::q5_1},  {8, SourceType::q8_0}, {12, SourceType::q4_k},
      {13, SourceType::q5_k}, {14, SourceType::q6_k}, {24, SourceType::i8},  {25, SourceType::i16},
      {26, SourceType::i32},  {27, SourceType::i64},  {28, SourceType::f64}, {30, SourceType::bf16}};
  static const std::map<uint32_t, const char*> kOthers = {
      {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
      {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
      {29, "IQ1_M"},   {34, "TQ1_0"}, {35, "TQ2_0"},  {39, "MXFP4"}};
  const auto found = kTypes.find(type);
  if (found != kTypes.end()) return found->second;
  const auto other = kOthers.find(type);
  throw Error(ErrorCode::unsupported,
              place + ": type " + (other == kOthers.end() ? std::to_string(type) : other->second) +
                  " is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are");
}

struct TensorInfo {
  SourceTensor tensor;
  uint64_t offset = 0;  // from the start of the data section
};

TensorInfo read_tensor_info(Reader& reader, const std::string& file_name) {
  TensorInfo info;
  SourceTensor& tensor = info.tensor;
  tensor.name = reader.string();
  tensor.file = file_name;
  if (tensor.name.size() > kMaxName)
    reader.fail("a name of " + std::to_string(tensor.name.size()) + " bytes");
  reader.enter("tensor " + printable(tensor.name));
  const auto dims = reader.number<uint32_t>();
  if (dims > kMaxDims) reader.fail(std::to_string(dims) + " dimensions; at most 4 are defined");
  for (uint32_t i = 0; i < dims; ++i) {
    const auto extent = reader.number<uint64_t>();
    if (extent > INT64_MAX) reader.fail("extent " + std::to_string(extent) + " overflows");
    tensor.shape.insert(tensor.shape.begin(),
                        static_cast<int64_t>(extent));  // the file's order is innermost first
  }
  tensor.type = tensor_type(reader.number<uint32_t>(), file_name + ": tensor " + printable(tensor.name));
  info.offset = reader.number<uint64_t>();

  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % block_cols(tensor.type) != 0) {
    reader.fail("rows of " + std::to_string(row) + " are not a multiple of the " +
                std::to_string(block_cols(tensor.type)) + " columns of a " +
                std::string(name_of(tensor.type)) + " block");
  }
  std::optional<int64_t> bytes =
      checked_product(row / block_cols(tensor.type), static_cast<int64_t>(block_bytes(tensor.type)));
  for (size_t i = 0; bytes && i + 1 < tensor.shape.size(); ++i)
    bytes = checked_product(*bytes, tensor.shape[i]);
  if (!bytes) reader.fail("its size overflows");
  tensor.data_bytes = static_cast<size_t>(*bytes);
  return info;
}

uint32_t read_version(Reader& reader) {
  if (as_text(reader.take(4)) != "GGUF") {
    reader.fail(
        "the file does not begin with \"GGUF\"; a GGUF file, or the directory of config.json and "
        "safetensors weights, is due");
  }
  const auto version = reader.number<uint32_t>();
  if (version == 2 || version == 3) return version;
  if (version != 0 && (version & 0xffffu) == 0) {
    throw Error(ErrorCode::unsupported, "the GGUF file is big-endian; little-endian files are read");
  }
  throw Error(ErrorCode::unsupported,
              "GGUF version " + std::to_string(version) + " is not supported; versions 2 and 3 are");
}

int64_t alignment_of(const GgufMetadata& metadata) {
  const int64_t alignment = metadata.integer("general.alignment").value_or(kDefaultAlignment);
  if (alignment < 1 || alignment > kMaxAlignment || !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    throw Error(ErrorCode::corrupt, "general.alignment: " + std::to_string(alignment) +
                                        " is not a power of two from 1 to " + std::to_string(kMaxAlignment));
  }
  return alignment;
}

// Points the tensors at their data: aligned, inside the file, not overlapping.
std::vector<SourceTensor> place_tensors(std::vector<TensorInfo> infos, std::span<const std::byte> file,
                                        size_t header_end, uint64_t alignment) {
  const size_t data_begin =
      std::min<size_t>((header_end + alignment - 1) / alignment * alignment, file.size());
  const auto data = file.subspan(data_begin);
  std::vector<SourceTensor> tensors;
  for (TensorInfo& info : infos) {
    SourceTensor& tensor = info.tensor;
    const std::string place = "tensor " + printable(tensor.name);
    if (info.offset % alignment != 0) {
      corrupt(tensor.file, place + ": offset " + std::to_string(info.offset) +
                               " is not a multiple of the alignment " + std::to_string(alignment));
    }
    if (info.offset > data.size() || tensor.data_bytes > data.size() - info.offset) {
      corrupt(tensor.file, place + ": " + std::to_string(tensor.data_bytes) + " bytes at offset " +
                               std::to_string(info.offset) + " pass the end of the file's " +
                               std::to_string(data.size()) + " bytes of data");
    }
    tensor.data = data.data() + info.offset;
    tensors.push_back(std::move(tensor));
  }
  std::vector<const SourceTensor*> order;
  for (const SourceTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const SourceTensor* a, const SourceTensor* b) {
    return std::pair(a->data, a->data_bytes) < std::pair(b->data, b->data_bytes);
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->data + order[i - 1]->data_bytes > order[i]->data) {
      corrupt(order[i]->file,
              "tensors " + printable(order[i - 1]->name) + " and " + printable(order[i]->name) + " overlap");
    }
  }
  return tensors;
}

std::string part_name(const std::string& prefix, int64_t part, int64_t parts) {
  char numbers[32];
  std::snprintf(numbers, sizeof numbers, "-%05d-of-%05d.gguf", static_cast<int>(part),
                static_cast<int>(parts));
  return prefix + numbers;
}

// "NAME" of "NAME-00001-of-00003.gguf".
std::string split_prefix(const std::string& path, int64_t parts) {
  const std::string suffix = part_name("", 1, parts);
  if (!path.ends_with(suffix)) {
    throw Error(ErrorCode::invalid_argument, path + ": the first of " + std::to_string(parts) +
                                                 " parts (split.count) must be named NAME" + suffix);
  }
  return path.substr(0, path.size() - suffix.size());
}

void add_part(MappedTensors& tensors, const std::string& path, int64_t part, int64_t parts) {
  auto file = std::make_shared<const MappedFile>(path);
  GgufFile parsed = GgufFile::parse(file->bytes(), std::filesystem::path(path).filename().string());
  const auto number = parsed.metadata.integer("split.no");
  const auto count = parsed.metadata.integer("split.count");
  if (number != part - 1 || count != parts) {
    corrupt(path, "split.no " + (number ? std::to_string(*number) : "(none)") + " and split.count " +
                      (count ? std::to_string(*count) : "(none)") + " should be " + std::to_string(part - 1) +
                      " and " + std::to_string(parts));
  }
  tensors.add(std::move(file), std::move(parsed.tensors));
}

}  // namespace

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& file_name) try {
  Reader reader(bytes, file_name);
  GgufFile file;
  file.version = read_version(reader);
  constexpr size_t kMinTensorInfo = 8 + 4 + 4 + 8;  // name length, dimensions, type, offset
  constexpr size_t kMinPair = 8 + 4 + 1;            // key length, type, the shortest value
  const uint64_t tensor_count = reader.count(kMinTensorInfo, "tensors");
  const uint64_t pair_count = reader.count(kMinPair, "metadata pairs");
  for (uint64_t i = 0; i < pair_count; ++i) {
    reader.enter("metadata pair " + std::to_string(i));
    std::string key(reader.string());
    if (key.size() > kMaxName) reader.fail("a key of " + std::to_string(key.size()) + " bytes");
    reader.enter("key " + printable(key));
    file.metadata.add(std::move(key), read_value(reader, bytes), file_name);
  }
  std::vector<TensorInfo> infos;
  std::unordered_set<std::string> names;
  for (uint64_t i = 0; i < tensor_count; ++i) {
    reader.enter("tensor " + std::to_string(i) + " of " + std::to_string(tensor_count));
    infos.push_back(read_tensor_info(reader, file_name));
    if (!names.insert(infos.back().tensor.name).second) reader.fail("the name occurs twice");
  }
  const auto alignment = static_cast<uint64_t>(alignment_of(file.metadata));
  file.tensors = place_tensors(std::move(infos), bytes, reader.position(), alignment);
  return file;
} catch (const Error& e) {
  const std::string message = e.what();
  throw Error(e.code(), message.starts_with(file_name) ? message : file_name + ": " + message);
}

GgufModel open_gguf(const std::string& path) {
  auto file = std::make_shared<const MappedFile>(path);
  GgufFile first = GgufFile::parse(file->bytes(), std::filesystem::path(path).filename().string());
  const int64_t parts = first.metadata.integer("split.count").value_or(1);
  const int64_t number = first.metadata.integer("split.no").value_or(0);
  if (parts < 1 || parts > kMaxParts) {
    corrupt(path, "split.count " + std::to_string(parts) + " is not from 1 to " + std::to_string(kMaxParts));
  }
  if (number != 0) {
    throw Error(ErrorCode::invalid_argument,
                path + ": split.no is " + std::to_string(number) +
                    "; name the first part (split.no 0), the others are found from it");
  }
  auto tensors = std::make_shared<MappedTensors>();
  tensors->add(std::move(file), std::move(first.tensors));
  if (parts > 1) {
    const std::string prefix = split_prefix(path, parts);
    for (int64_t part = 2; part <= parts; ++part)
      add_part(*tensors, part_name(prefix, part, parts), part, parts);
  }
  const auto declared = first.metadata.integer("split.tensors.count");
  if (declared && *declared != static_cast<int64_t>(tensors->all().size())) {
    corrupt(path, "split.tensors.count is " + std::to_string(*declared) + ", but the parts hold " +
                      std::to_string(tensors->all().size()) + " tensors");
  }
  return {std::move(first.metadata), std::move(tensors)};
}

}  // namespace ete
