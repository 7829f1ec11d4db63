#include "services/worker/session_blob.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/error.h"

namespace ete::worker {
namespace {

using testing::HasSubstr;

SessionFormat format() {
  return {.model = std::string(32, 'm'),
          .sizes = {.context = 16, .vocab_size = 100, .position_bytes = 6, .state_bytes = 20}};
}

SessionImage image() {
  return {.ids = {5, 6, 7, 99},
          .positions = 3,
          .keys_values = std::string(18, 'k'),
          .state = std::string(20, 's'),
          .logits = std::vector<float>(100, 0.25F)};
}

// What is refused, and why; "" when nothing is.
std::string refusal(const std::string& document, const SessionFormat& taken = format()) {
  try {
    read_session(document, taken);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("session: "));
    return error.what();
  }
}

// Where the header's fields begin.
constexpr size_t kVersionAt = 8;
constexpr size_t kIdsAt = 8 + 4 + 32;

std::string with_number(std::string document, size_t at, uint64_t value) {
  std::memcpy(document.data() + at, &value, sizeof value);
  return document;
}

TEST(SessionBlob, RoundTrip) {
  const std::string document = write_session(image(), format());
  EXPECT_EQ(session_bytes(document.substr(0, kSessionHeaderBytes), format()), document.size());
  const SessionImage read = read_session(document, format());
  EXPECT_EQ(read.ids, image().ids);
  EXPECT_EQ(read.positions, 3);
  EXPECT_EQ(read.keys_values, image().keys_values);
  EXPECT_EQ(read.state, image().state);
  EXPECT_EQ(read.logits, image().logits);
  SessionImage unknown = image();
  unknown.logits.clear();
  EXPECT_TRUE(read_session(write_session(unknown, format()), format()).logits.empty());
  const SessionImage bare{.ids = {1, 2}};
  EXPECT_EQ(read_session(write_session(bare, format()), format()).ids, bare.ids);
}

TEST(SessionBlob, EveryDamagedByteIsNoticed) {
  const std::string document = write_session(image(), format());
  for (size_t i = 0; i < document.size(); ++i) {
    std::string damaged = document;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    EXPECT_NE(refusal(damaged), "") << i;
  }
  std::string damaged = document;
  damaged[kSessionHeaderBytes + 20] ^= 1;
  EXPECT_THAT(refusal(damaged), HasSubstr("do not have the SHA-256"));
}

TEST(SessionBlob, EveryLengthButItsOwnIsRefused) {
  const std::string document = write_session(image(), format());
  for (size_t length = 0; length < document.size(); ++length) {
    EXPECT_NE(refusal(document.substr(0, length)), "") << length;
  }
  EXPECT_THAT(refusal(document.substr(0, document.size() - 1)), HasSubstr("its header tells of"));
  EXPECT_THAT(refusal(document + "x"), HasSubstr("its header tells of"));
}

TEST(SessionBlob, OthersAreNamed) {
  const std::string document = write_session(image(), format());
  SessionFormat other = format();
  other.model[31] = 'n';
  EXPECT_THAT(refusal(document, other), HasSubstr("made with another model"));
  other = format();
  other.sizes.context = 3;
  EXPECT_THAT(refusal(document, other), HasSubstr("4 ids, 3 positions of them; accepted: 1 to 3"));
  other = format();
  other.sizes.vocab_size = 99;
  EXPECT_THAT(refusal(document, other), HasSubstr("400 bytes of logits"));
  SessionImage unknown = image();
  unknown.logits.clear();
  EXPECT_THAT(refusal(write_session(unknown, format()), other), HasSubstr("id 99; accepted: 0 to 98"));
  std::string version = document;
  version[kVersionAt] = 3;
  EXPECT_THAT(refusal(version), HasSubstr("version 3; accepted: 2"));
  version[kVersionAt] = 1;
  EXPECT_THAT(refusal(version), HasSubstr("version 1, of an earlier ete, which kept no logits; accepted: 2"));
  EXPECT_THAT(refusal(std::string(200, 'x')), HasSubstr("do not begin with ETESESSN"));
}

// Sizes that a header makes up decide nothing.
TEST(SessionBlob, HostileSizesAreRefusedByTheHeaderAlone) {
  const std::string document = write_session(image(), format());
  for (size_t field = 0; field < 5; ++field) {
    for (const uint64_t value : {uint64_t{0}, uint64_t{1} << 31, uint64_t{1} << 63, ~uint64_t{0}}) {
      if (field == 1 && value == 0) continue;  // no positions: then the sizes are wrong
      if (field == 4 && value == 0) continue;  // no logits: then there is too much
      const std::string hostile = with_number(document, kIdsAt + 8 * field, value);
      EXPECT_THROW(session_bytes(hostile, format()), Error) << field << " " << value;
    }
  }
  EXPECT_THROW(session_bytes(with_number(document, kIdsAt + 8, 0), format()), Error);
}

TEST(SessionBlob, LogitsAreOneRowOfFiniteNumbers) {
  const std::string document = write_session(image(), format());
  const auto sized = [&](uint64_t bytes) { return with_number(document, kIdsAt + 8 * 4, bytes); };
  EXPECT_THAT(refusal(sized(0)), HasSubstr("its header tells of"));
  EXPECT_THAT(refusal(sized(396)),
              HasSubstr("396 bytes of logits after 3 positions; accepted: none, or 400"));
  EXPECT_THAT(refusal(sized(800)), HasSubstr("800 bytes of logits"));
  SessionImage damaged = image();
  damaged.logits[7] = NAN;
  EXPECT_THAT(refusal(write_session(damaged, format())), HasSubstr("logits that are NaN or infinite"));
  damaged.logits[7] = INFINITY;
  EXPECT_THAT(refusal(write_session(damaged, format())), HasSubstr("logits that are NaN or infinite"));
  SessionImage early{.ids = {1, 2}, .logits = image().logits};
  EXPECT_THAT(refusal(write_session(early, format())), HasSubstr("logits after 0 positions"));
}

TEST(SessionBlob, TheDigestIsThatOfOneModel) {
  const std::filesystem::path models = ETE_SOURCE_DIR "/tests/golden/models";
  const auto digest = [&](const std::filesystem::path& path, const std::string& kv_type) {
    Plan plan;
    plan.kv_type = kv_type;
    return model_digest(open_model((models / path).string()), plan);
  };
  const std::string one = digest("llama_gqa", "f16");
  const std::filesystem::path copy =
      std::filesystem::path(testing::TempDir()) / ("session_blob_test." + std::to_string(getpid()));
  std::filesystem::copy(models / "llama_gqa", copy);
  EXPECT_EQ(digest(copy, "f16"), one);
  {
    std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    file.seekp(static_cast<std::streamoff>(sizeof header + header));
    file.put('\x55');
  }
  EXPECT_NE(digest(copy, "f16"), one) << "another weight";
  std::filesystem::remove_all(copy);
  EXPECT_EQ(one.size(), 32u);
  EXPECT_EQ(one, digest("llama_gqa", "f16"));
  EXPECT_NE(one, digest("llama_gqa", "f32"));
  EXPECT_NE(one, digest("llama_rope_scaled", "f16"));
  EXPECT_NE(digest("qwen3_5", "f16"), digest("qwen3_5_bf16", "f16"));
}

}  // namespace
}  // namespace ete::worker
