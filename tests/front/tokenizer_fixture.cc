#include "tests/front/tokenizer_fixture.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "services/front/tokenizer/stream_decoder.h"

namespace ete::front {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& data) : data_(data) {}

  template <typename T>
  T scalar() {
    T value;
    std::memcpy(&value, data_.data() + take(sizeof value), sizeof value);
    return value;
  }
  std::string string() {
    const uint32_t size = scalar<uint32_t>();
    return data_.substr(take(size), size);
  }
  bool done() const { return at_ == data_.size(); }

 private:
  size_t take(size_t n) {
    if (n > data_.size() - at_) throw std::runtime_error("vocabulary fixture is cut short");
    at_ += n;
    return at_ - n;
  }
  const std::string& data_;
  size_t at_ = 0;
};

std::string inflate_all(const std::string& packed) {
  std::string out(packed.size() * 8, '\0');
  while (true) {
    uLongf size = out.size();
    const int rc = uncompress(reinterpret_cast<Bytef*>(out.data()), &size,
                              reinterpret_cast<const Bytef*>(packed.data()), packed.size());
    if (rc == Z_OK) {
      out.resize(size);
      return out;
    }
    if (rc != Z_BUF_ERROR) throw std::runtime_error("zlib: " + std::to_string(rc));
    out.resize(out.size() * 2);
  }
}

}  // namespace

std::string golden_dir() { return std::string(ETE_SOURCE_DIR) + "/tests/golden/"; }

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

std::vector<nlohmann::json> read_json_lines(const std::string& path) {
  std::istringstream lines(read_file(path));
  std::vector<nlohmann::json> out;
  for (std::string line; std::getline(lines, line);) out.push_back(nlohmann::json::parse(line));
  return out;
}

std::map<std::string, std::string> golden_files(const std::string& name,
                                                const std::vector<std::string>& wanted) {
  std::map<std::string, std::string> files;
  for (const std::string& file : wanted)
    files[file] = read_file(golden_dir() + "tokenizers/" + name + "/" + file);
  return files;
}

GgufVocabulary read_gguf_vocabulary(const std::string& name) {
  const std::string data = inflate_all(read_file(golden_dir() + "gguf_vocab/" + name + ".bin"));
  constexpr std::string_view kMagic = "ETEVOCAB1";
  if (!data.starts_with(kMagic)) throw std::runtime_error("not a vocabulary fixture");
  const std::string body = data.substr(kMagic.size());
  Reader in(body);
  GgufVocabulary v;
  v.model = in.string();
  v.pre = in.string();
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) v.tokens.push_back(in.string());
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) v.scores.push_back(in.scalar<float>());
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) v.token_types.push_back(in.scalar<uint8_t>());
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) v.merges.push_back(in.string());
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) {
    const std::string key = in.string();
    v.special_ids[key] = in.scalar<int64_t>();
  }
  for (uint32_t n = in.scalar<uint32_t>(); n > 0; --n) {
    const std::string key = in.string();
    v.flags[key] = in.scalar<uint8_t>() != 0;
  }
  if (!in.done()) throw std::runtime_error("bytes after the vocabulary fixture");
  return v;
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  StreamDecoder decoder(tokenizer, skip_special);
  std::string out;
  for (const int32_t id : ids) {
    const std::string piece = decoder.push(id);
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos) << "id " << id;
    out += piece;
  }
  const std::string rest = decoder.flush();
  EXPECT_LE(rest.size(), 3 * kReplacement.size());
  return out + rest;
}

std::string lossy(const std::string& bytes, InvalidBytes rule) {
  std::string out;
  append_lossy(out, bytes, rule, true);
  return out;
}

}  // namespace ete::front
