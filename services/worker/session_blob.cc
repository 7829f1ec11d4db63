#include "services/worker/session_blob.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "services/common/sha256.h"

namespace ete::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

constexpr std::string_view kMagic = "ETESESSN";
constexpr uint32_t kVersion = 2;
constexpr size_t kDigestBytes = 32;
// Of each tensor: this many pieces, evenly spaced.
constexpr size_t kPieces = 16;
constexpr size_t kPieceBytes = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, "session: " + message);
}

struct Header {
  uint64_t ids = 0;
  uint64_t positions = 0;
  uint64_t kv_bytes = 0;
  uint64_t state_bytes = 0;
  uint64_t logits_bytes = 0;
};

template <typename T>
void put(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
T take(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof value);
  in.remove_prefix(sizeof value);
  return value;
}

std::string sha256(std::string_view bytes) {
  service::Sha256 digest;
  digest.add(bytes);
  return digest.finish();
}

// Sizes are checked here: they decide how much is read and held.
Header read_header(std::string_view in, const SessionFormat& format) {
  if (in.size() < kSessionHeaderBytes) {
    refuse(std::to_string(in.size()) + " bytes; a session has at least " +
           std::to_string(kSessionHeaderBytes + kDigestBytes));
  }
  if (!in.starts_with(kMagic))
    refuse("these bytes are no session: they do not begin with " + std::string(kMagic));
  in.remove_prefix(kMagic.size());
  const auto version = take<uint32_t>(in);
  if (version != kVersion) {
    const std::string why = version < kVersion ? ", of an earlier ete, which kept no logits" : "";
    refuse("version " + std::to_string(version) + why + "; accepted: " + std::to_string(kVersion));
  }
  if (!in.starts_with(format.model)) {
    refuse("it was made with another model, or with other --weights or --kv-type");
  }
  in.remove_prefix(kDigestBytes);
  Header header;
  header.ids = take<uint64_t>(in);
  header.positions = take<uint64_t>(in);
  header.kv_bytes = take<uint64_t>(in);
  header.state_bytes = take<uint64_t>(in);
  header.logits_bytes = take<uint64_t>(in);
  const SessionImageSizes& sizes = format.sizes;
  const auto context = static_cast<uint64_t>(sizes.context);
  if (header.ids == 0 || header.ids > context || header.positions > header.ids) {
    refuse(std::to_string(header.ids) + " ids, " + std::to_string(header.positions) +
           " positions of them; accepted: 1 to " + std::to_string(context) + " ids (--context)");
  }
  const uint64_t kv_bytes = header.positions * sizes.position_bytes;
  const uint64_t state_bytes = header.positions > 0 ? sizes.state_bytes : 0;
  if (header.kv_bytes != kv_bytes || header.state_bytes != state_bytes) {
    refuse(std::to_string(header.kv_bytes) + " bytes of keys and values and " +
           std::to_string(header.state_bytes) + " of state; " + std::to_string(header.positions) +
           " positions take " + std::to_string(kv_bytes) + " and " + std::to_string(state_bytes));
  }
  const uint64_t row_bytes = static_cast<uint64_t>(sizes.vocab_size) * sizeof(float);
  if (header.logits_bytes != 0 && (header.logits_bytes != row_bytes || header.positions == 0)) {
    refuse(std::to_string(header.logits_bytes) + " bytes of logits after " +
           std::to_string(header.positions) + " positions; accepted: none, or " + std::to_string(row_bytes) +
           " after 1 or more");
  }
  return header;
}

size_t total(const Header& header) {
  return kSessionHeaderBytes + header.ids * sizeof(int32_t) + header.kv_bytes + header.state_bytes +
         header.logits_bytes + kDigestBytes;
}

}  // namespace

std::string model_digest(const ModelFiles& files, const Plan& plan) {
  const ModelConfig& c = files.config;
  service::Sha256 digest;
  const auto add = [&digest](const auto& value) {
    const std::string text = [&] {
      if constexpr (requires { std::to_string(value); }) {
        return std::to_string(value);
      } else {
        return std::string(value);
      }
    }();
    digest.add(std::to_string(text.size()) + ":" + text);
  };
  add(c.architecture);
  for (const int64_t size : {c.hidden_size, c.intermediate_size, c.num_hidden_layers, c.num_attention_heads,
                             c.num_key_value_heads, c.head_dim, c.vocab_size, c.linear_layers()}) {
    add(size);
  }
  add(plan.kv_type);
  for (const auto& [format, bytes] : plan.bytes_by_format) {
    add(format);
    add(bytes);
  }
  if (!files.tensors) return digest.finish();
  for (const SourceTensor* tensor : files.tensors->all()) {
    add(tensor->name);
    add(name_of(tensor->type));
    for (const int64_t size : tensor->shape) add(size);
    const std::span bytes(tensor->data, tensor->data_bytes);
    for (size_t i = 0; i < kPieces && !bytes.empty(); ++i) {
      const auto piece = bytes.subspan(i * (bytes.size() / kPieces));
      const size_t length = std::min(piece.size(), kPieceBytes);
      digest.add({reinterpret_cast<const char*>(piece.data()), length});
    }
  }
  return digest.finish();
}

std::string write_session(const SessionImage& image, const SessionFormat& format) {
  std::string out;
  const Header header{image.ids.size(), static_cast<uint64_t>(image.positions), image.keys_values.size(),
                      image.state.size(), image.logits.size() * sizeof(float)};
  out.reserve(total(header));
  out += kMagic;
  put(out, kVersion);
  out += format.model;
  put(out, header.ids);
  put(out, header.positions);
  put(out, header.kv_bytes);
  put(out, header.state_bytes);
  put(out, header.logits_bytes);
  out.append(reinterpret_cast<const char*>(image.ids.data()), image.ids.size() * sizeof(int32_t));
  out += image.keys_values;
  out += image.state;
  out.append(reinterpret_cast<const char*>(image.logits.data()), header.logits_bytes);
  return out + sha256(out);
}

size_t session_bytes(std::string_view header, const SessionFormat& format) {
  return total(read_header(header, format));
}

SessionImage read_session(std::string_view document, const SessionFormat& format) {
  const Header header = read_header(document, format);
  if (document.size() != total(header)) {
    refuse(std::to_string(document.size()) + " bytes, but its header tells of " +
           std::to_string(total(header)));
  }
  const std::string_view signed_part = document.substr(0, document.size() - kDigestBytes);
  if (sha256(signed_part) != document.substr(signed_part.size())) {
    refuse("its bytes are damaged: they do not have the SHA-256 that they end with");
  }
  std::string_view in = signed_part.substr(kSessionHeaderBytes);
  SessionImage image;
  image.positions = static_cast<int64_t>(header.positions);
  image.ids.resize(header.ids);
  std::memcpy(image.ids.data(), in.data(), header.ids * sizeof(int32_t));
  in.remove_prefix(header.ids * sizeof(int32_t));
  image.keys_values = in.substr(0, header.kv_bytes);
  image.state = in.substr(header.kv_bytes, header.state_bytes);
  image.logits.resize(header.logits_bytes / sizeof(float));
  if (header.logits_bytes > 0) {
    std::memcpy(image.logits.data(), in.data() + header.kv_bytes + header.state_bytes, header.logits_bytes);
  }
  check_session_image(image, format.sizes);
  return image;
}

}  // namespace ete::worker
