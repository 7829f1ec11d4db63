#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ete::front {

// libsentencepiece, to test against. Alone in its own source file: its header clashes with absl's.
class SentencePieceOracle {
 public:
  // serialized: a ModelProto. Throws std::runtime_error when the library does not take it.
  explicit SentencePieceOracle(const std::string& serialized);
  ~SentencePieceOracle();

  std::vector<int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<int32_t>& ids) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ete::front
