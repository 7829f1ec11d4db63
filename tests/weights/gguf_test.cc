#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "engine/weights/gguf_file.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/gguf_builder.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::message_of;
using B = GgufBuilder;

GgufFile parse(const std::string& bytes) {
  return GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf");
}
std::string refusal(const GgufBuilder& builder) {
  return message_of([&] { parse(builder.bytes()); });
}

GgufBuilder small_model() {
  GgufBuilder b;
  b.string("general.architecture", "llama");
  b.u32("llama.block_count", 2);
  b.strings("tokens", {"a", "", "ccc"});
  b.array("scores", B::kF32, std::vector<float>{1.5f, 2.5f});
  b.array("types", B::kI32, std::vector<int32_t>{-1, 3});
  b.tensor("w", {3, 32}, B::kTensorQ8_0, std::string(3 * 34, 'q'));
  b.tensor("v", {5}, B::kTensorF32, std::string(20, 'v'));
  return b;
}

TEST(Gguf, ReadsEveryValueType) {
  GgufBuilder b;
  b.scalar("u8", B::kU8, uint8_t{200});
  b.scalar("i8", B::kI8, int8_t{-100});
  b.scalar("u16", B::kU16, uint16_t{60000});
  b.scalar("i16", B::kI16, int16_t{-30000});
  b.scalar("u32", B::kU32, uint32_t{4'000'000'000});
  b.scalar("i32", B::kI32, int32_t{-2'000'000'000});
  b.scalar("u64", B::kU64, std::numeric_limits<uint64_t>::max());
  b.scalar("i64", B::kI64, std::numeric_limits<int64_t>::min());
  b.scalar("f32", B::kF32, 0.5f);
  b.scalar("f64", B::kF64, 0.1);
  b.boolean("bool", true);
  b.string("string", "text");
  const std::string bytes = b.bytes();
  const GgufMetadata m = parse(bytes).metadata;
  EXPECT_EQ(m.integer("u8"), 200);
  EXPECT_EQ(m.integer("i8"), -100);
  EXPECT_EQ(m.integer("u16"), 60000);
  EXPECT_EQ(m.integer("i16"), -30000);
  EXPECT_EQ(m.integer("u32"), 4'000'000'000);
  EXPECT_EQ(m.integer("i32"), -2'000'000'000);
  EXPECT_EQ(m.integer("i64"), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(m.number("f32"), 0.5);
  EXPECT_EQ(m.number("f64"), 0.1);
  EXPECT_EQ(m.boolean("bool"), true);
  EXPECT_EQ(m.string("string"), "text");
  EXPECT_EQ(m.integer("absent"), std::nullopt);
  EXPECT_THAT(message_of([&] { m.integer("u64"); }), HasSubstr("u64: holds 18446744073709551615"));
  EXPECT_THAT(message_of([&] { m.integer("string"); }), HasSubstr("string: holds \"text\""));
  EXPECT_THAT(message_of([&] { m.number("u8"); }), HasSubstr("u8: holds 200"));
  EXPECT_THAT(message_of([&] { m.boolean("u8"); }), HasSubstr("a bool is due"));
}

TEST(Gguf, ReadsArraysAndTensors) {
  for (const uint32_t version : {2u, 3u}) {
    GgufBuilder b = small_model();
    b.version = version;
    const std::string bytes = b.bytes();
    const GgufFile file = parse(bytes);
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.metadata.array("tokens")->strings("tokens"), (std::vector<std::string>{"a", "", "ccc"}));
    EXPECT_EQ(file.metadata.array("scores")->floats("scores"), (std::vector<float>{1.5f, 2.5f}));
    EXPECT_EQ(file.metadata.array("types")->integers("types"), (std::vector<int64_t>{-1, 3}));
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(file.tensors[0].shape, (std::vector<int64_t>{3, 32}));
    EXPECT_EQ(file.tensors[0].data_bytes, 3u * 34);
    EXPECT_EQ(std::to_integer<char>(file.tensors[0].data[0]), 'q');
    EXPECT_EQ(std::to_integer<char>(file.tensors[1].data[19]), 'v');
  }
}

TEST(Gguf, RefusesOtherVersions) {
  GgufBuilder b = small_model();
  b.version = 1;
  EXPECT_THAT(refusal(b), HasSubstr("version 1 "));
  b.version = 4;
  EXPECT_THAT(refusal(b), HasSubstr("version 4 "));
  b.version = 0x03000000;
  EXPECT_THAT(refusal(b), HasSubstr("big-endian"));
  b.magic = "GGML";
  EXPECT_THAT(refusal(b), HasSubstr("does not begin with \"GGUF\""));
}

TEST(Gguf, RefusesCountsThatCannotFitBeforeAllocating) {
  GgufBuilder b = small_model();
  b.tensor_count = uint64_t{1} << 60;
  EXPECT_THAT(refusal(b), HasSubstr("1152921504606846976 tensors cannot fit"));
  b = small_model();
  b.pair_count = uint64_t{1} << 60;
  EXPECT_THAT(refusal(b), HasSubstr("1152921504606846976 metadata pairs cannot fit"));
  b = small_model();
  b.array_of_count("huge", B::kU64, uint64_t{1} << 61, std::vector<uint64_t>{1});
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("key huge"), HasSubstr("elements cannot fit")));
  b = small_model();
  b.array_of_count("strings", B::kString, 1, std::vector<uint64_t>{uint64_t{1} << 62});
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("key strings"), HasSubstr("the file ends")));
}

TEST(Gguf, RefusesBadMetadata) {
  GgufBuilder b = small_model();
  b.u32("llama.block_count", 3);
  EXPECT_THAT(refusal(b), HasSubstr("llama.block_count occurs twice"));
  b = small_model();
  b.scalar("odd", 13, uint32_t{0});
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("key odd"), HasSubstr("value type 13")));
  b = small_model();
  b.scalar("flag", B::kBool, uint8_t{2});
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("key flag"), HasSubstr("a bool holds 2")));
  b = small_model();
  b.u32("general.alignment", 24);
  EXPECT_THAT(refusal(b), HasSubstr("general.alignment: 24"));
  b = small_model();
  b.u32("general.alignment", 0);
  EXPECT_THAT(refusal(b), HasSubstr("general.alignment: 0"));
}

// Arrays within arrays: one element each, `depth` times.
TEST(Gguf, BoundsTheDepthOfArrays) {
  for (const auto& [depth, fits] : {std::pair{2, true}, {100'000, false}}) {
    std::vector<uint32_t> words;
    for (int i = 0; i < depth; ++i) words.insert(words.end(), {B::kArray, 1, 0});
    words.insert(words.end(), {B::kU32, 0, 0});
    GgufBuilder b;
    b.array_of_count("deep", B::kArray, 1, words);
    if (fits) {
      EXPECT_NO_THROW(parse(b.bytes()));
    } else {
      EXPECT_THAT(refusal(b), HasSubstr("nested deeper"));
    }
  }
}

TEST(Gguf, RefusesBadTensors) {
  const auto with = [](const std::vector<uint64_t>& shape, uint32_t type, uint64_t offset) {
    GgufBuilder b = small_model();
    b.tensor_at("bad", shape, type, offset);
    return refusal(b);
  };
  EXPECT_THAT(with({1, 1, 1, 1, 1}, B::kTensorF32, 0),
              AllOf(HasSubstr("tensor bad"), HasSubstr("5 dimensions")));
  EXPECT_THAT(with({1, 33}, B::kTensorQ8_0, 0), AllOf(HasSubstr("tensor bad"), HasSubstr("rows of 33")));
  EXPECT_THAT(with({1}, 10, 0), AllOf(HasSubstr("tensor bad"), HasSubstr("type Q2_K")));
  EXPECT_THAT(with({1}, 999, 0), AllOf(HasSubstr("tensor bad"), HasSubstr("type 999")));
  EXPECT_THAT(with({1}, B::kTensorF32, 7), HasSubstr("offset 7 is not a multiple"));
  EXPECT_THAT(with({1}, B::kTensorF32, 1 << 20), AllOf(HasSubstr("tensor bad"), HasSubstr("pass the end")));
  EXPECT_THAT(with({1 << 20}, B::kTensorF32, 0), AllOf(HasSubstr("tensor bad"), HasSubstr("pass the end")));
  EXPECT_THAT(with({1, uint64_t{1} << 63}, B::kTensorF32, 0), HasSubstr("overflows"));
  EXPECT_THAT(with({uint64_t{1} << 40, uint64_t{1} << 40}, B::kTensorF32, 0), HasSubstr("overflows"));
  EXPECT_THAT(with({4}, B::kTensorF32, 0), AllOf(HasSubstr("bad"), HasSubstr("overlap")));
  GgufBuilder b = small_model();
  b.tensor("w", {1}, B::kTensorF32, "1234");
  EXPECT_THAT(refusal(b), AllOf(HasSubstr("tensor w"), HasSubstr("occurs twice")));
}

TEST(Gguf, HonoursTheAlignment) {
  GgufBuilder b;
  b.alignment = 256;
  b.u32("general.alignment", 256);
  b.tensor("a", {1}, B::kTensorF32, "aaaa");
  b.tensor("b", {1}, B::kTensorF32, "bbbb");
  const std::string bytes = b.bytes();
  const GgufFile file = parse(bytes);
  EXPECT_EQ(std::to_integer<char>(file.tensors[1].data[0]), 'b');
  EXPECT_EQ(file.tensors[1].data - file.tensors[0].data, 256);
}

GgufBuilder part(uint16_t number, uint16_t count, const std::string& tensor) {
  GgufBuilder b;
  b.string("general.architecture", "llama");
  b.scalar("split.no", B::kU16, number);
  b.scalar("split.count", B::kU16, count);
  b.scalar("split.tensors.count", B::kI32, int32_t{3});
  b.tensor(tensor, {1}, B::kTensorF32, tensor + "***");
  return b;
}

class SplitGguf : public ::testing::Test {
 protected:
  SplitGguf() {
    part(0, 3, "a").write(name(1));
    part(1, 3, "b").write(name(2));
    part(2, 3, "c").write(name(3));
  }
  std::string name(int number) const {
    return dir_.file("m-0000" + std::to_string(number) + "-of-00003.gguf");
  }
  testing::TempDir dir_;
};

TEST_F(SplitGguf, FindsTheOtherParts) {
  const GgufModel model = open_gguf(name(1));
  EXPECT_EQ(model.metadata.string("general.architecture"), "llama");
  ASSERT_NE(model.tensors->find("c"), nullptr);
  EXPECT_EQ(std::to_integer<char>(model.tensors->find("c")->data[0]), 'c');
  EXPECT_EQ(model.tensors->find("c")->file, "m-00003-of-00003.gguf");
}

TEST_F(SplitGguf, RefusesWhatDoesNotBelongTogether) {
  EXPECT_THAT(message_of([&] { open_gguf(name(2)); }), HasSubstr("split.no is 1"));
  part(0, 3, "b").write(name(2));
  EXPECT_THAT(message_of([&] { open_gguf(name(1)); }),
              HasSubstr("split.no 0 and split.count 3 should be 1 and 3"));
  part(1, 3, "a").write(name(2));
  EXPECT_THAT(message_of([&] { open_gguf(name(1)); }), HasSubstr("tensor a occurs in"));
  std::filesystem::remove(name(2));
  EXPECT_THAT(message_of([&] { open_gguf(name(1)); }), HasSubstr("m-00002-of-00003.gguf"));
  part(0, 3, "a").write(dir_.file("plain.gguf"));
  EXPECT_THAT(message_of([&] { open_gguf(dir_.file("plain.gguf")); }),
              HasSubstr("must be named NAME-00001-of-00003"));
}

TEST_F(SplitGguf, CountsTheTensors) {
  GgufBuilder b = part(2, 3, "c");
  b.tensor("d", {1}, B::kTensorF32, "dddd");
  b.write(name(3));
  EXPECT_THAT(message_of([&] { open_gguf(name(1)); }),
              HasSubstr("split.tensors.count is 3, but the parts hold 4"));
}

// Never anything but success or Error, whatever a file's bytes are.
TEST(Gguf, SurvivesDamage) {
  const std::string good = small_model().bytes();
  ASSERT_NO_THROW(parse(good));
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      parse(bytes);
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t size = 0; size < good.size(); ++size) attempt(good.substr(0, size));
  EXPECT_EQ(refused, static_cast<int>(good.size()));
  std::mt19937 random(1);
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[at] ^= static_cast<char>(1 << bit);
      if (random() % 4 == 0) bytes[random() % bytes.size()] ^= static_cast<char>(random());
      attempt(bytes);
    }
  }
  EXPECT_GT(refused, static_cast<int>(good.size()) + 1000);
}

}  // namespace
}  // namespace ete
