#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <random>

#include "engine/weights/safetensors_file.h"
#include "engine/weights/untrusted.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

std::vector<SourceTensor> parse(const std::string& bytes) {
  return parse_safetensors(std::as_bytes(std::span(bytes)), "model.safetensors");
}

std::string refusal(const std::string& header, const std::string& data = std::string(64, '\0')) {
  return message_of([&] { parse(file_of(header, data)); });
}

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const std::string bytes = file_of(
      R"({"__metadata__": {"format": "pt"}, "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [4, 16]},
          "b": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
          "none": {"dtype": "F32", "shape": [0, 7], "data_offsets": [16, 16]},
          "scalar": {"dtype": "F32", "shape": [], "data_offsets": [16, 20]}})",
      std::string(20, '\1'));
  const auto tensors = parse(bytes);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[1].name, "a");
  EXPECT_EQ(tensors[1].type, SourceType::f16);
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(tensors[1].data_bytes, 12u);
  EXPECT_EQ(tensors[1].data - tensors[0].data, 4);
}

TEST(Safetensors, NamesTheTensorAndTheFault) {
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 12]}})"),
              AllOf(HasSubstr("tensor w"), HasSubstr("span 12 bytes"), HasSubstr("is 8")));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [60, 68]}})"),
              HasSubstr("[60, 68] lie outside the 64 bytes"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}})"),
              HasSubstr("[8, 0]"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 18446744073709551615]}})"),
              HasSubstr("data_offsets holds"));
  EXPECT_THAT(
      refusal(R"({"w": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}})"),
      HasSubstr("overflows"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})"),
              HasSubstr("shape holds -1"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})"),
              HasSubstr("shape holds"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}})"),
              AllOf(HasSubstr("tensor w"), HasSubstr("F8_E4M3")));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "F32", "data_offsets": [0, 4]}})"), HasSubstr("shape is missing"));
  EXPECT_THAT(refusal(R"({"w": 3})"), HasSubstr("tensor w"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                          "v": {"dtype": "U8", "shape": [4], "data_offsets": [3, 7]}})"),
              AllOf(HasSubstr("overlap"), HasSubstr("w"), HasSubstr("v")));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                          "w": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}})"),
              HasSubstr("occurs twice"));
}

TEST(Safetensors, LeavesNoByteWithoutATensor) {
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                          "v": {"dtype": "U8", "shape": [4], "data_offsets": [5, 9]}})",
                      std::string(9, '\0')),
              HasSubstr("bytes [4, 5) of the data belong to no tensor"));
  EXPECT_THAT(
      refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [1, 5]}})", std::string(5, '\0')),
      HasSubstr("bytes [0, 1)"));
  EXPECT_THAT(
      refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", std::string(7, '\0')),
      HasSubstr("bytes [4, 7)"));
}

TEST(Safetensors, ChecksTheHeadersLength) {
  EXPECT_THAT(message_of([] { parse("1234567"); }), HasSubstr("too few"));
  std::string bytes = file_of("{}", "");
  bytes[7] = '\x7f';
  EXPECT_THAT(message_of([&] { parse(bytes); }), HasSubstr("header length"));
  EXPECT_TRUE(parse(file_of("{}", "")).empty());
}

TEST(Safetensors, TakesNothingButWhatTheFormatHas) {
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4], "scale": 2}})"),
              AllOf(HasSubstr("tensor w"), HasSubstr("field scale")));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 1]}})"),
              HasSubstr("at most 8 extents"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [[4]], "data_offsets": [0, 4]}})"),
              HasSubstr("shape holds a list"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": {}, "data_offsets": [0, 4]}})"), HasSubstr("shape"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": ["U8"], "shape": [4], "data_offsets": [0, 4]}})"),
              HasSubstr("dtype is not a string"));
  for (const char* offsets : {"[0]", "[0, 4, 4]", "4", "[]"}) {
    EXPECT_THAT(
        refusal(std::string(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": )") + offsets + "}}"),
        HasSubstr("not a list of two offsets"));
  }
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})"),
              HasSubstr("occurs twice"));
  EXPECT_THAT(refusal(R"({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]})"),
              HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(R"({"w": )" + std::string(1000, '[')), HasSubstr("tensor w"));
  EXPECT_THAT(refusal("3"), HasSubstr("not a JSON object"));
}

TEST(Safetensors, MetadataIsSkipped) {
  for (const char* metadata : {"{}", R"("text")", "null", R"({"a": "b", "c": {"d": [1, 2]}})"}) {
    const std::string header = std::string(R"({"__metadata__": )") + metadata +
                               R"(, "w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})";
    EXPECT_EQ(parse(file_of(header, "abcd")).size(), 1u) << metadata;
  }
  EXPECT_THAT(refusal(R"({"__metadata__": )" + std::string(1000, '[')), HasSubstr("nested deeper"));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
size_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

// 8 MB of header, more than any real file's: costs a few times that, not twenty.
TEST(Safetensors, LongHeadersCostLittleMemory) {
  std::string header = "{";
  while (header.size() < (size_t{8} << 20)) {
    header += header.size() == 1 ? "\"" : ",\"";
    header += "t" + std::to_string(header.size()) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  const std::string bytes = file_of(header + "}", "");
  const size_t before = peak_bytes();
  EXPECT_GT(parse(bytes).size(), size_t{100'000});
  EXPECT_LT(peak_bytes() - before, size_t{80} << 20);
}
#endif

TEST(Safetensors, RefusesAHeaderThatNoModelHas) {
  const std::string bytes = file_of(std::string(size_t{17} << 20, ' '), "");
  EXPECT_THAT(message_of([&] { parse(bytes); }), HasSubstr("header length"));
}

TEST(SafetensorsIndex, TakesPlainFileNamesOnly) {
  const auto index = [](const std::string& shard) {
    return parse_safetensors_index(R"({"metadata": {}, "weight_map": {"w": ")" + shard + "\"}}", "index");
  };
  EXPECT_EQ(index("model-1.safetensors").at("w"), "model-1.safetensors");
  for (const char* outside : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\\\b", "a\\u0000b"}) {
    EXPECT_THAT(message_of([&] { index(outside); }), HasSubstr("not the name of a file")) << outside;
  }
  EXPECT_THAT(message_of([] { parse_safetensors_index("{}", "index"); }), HasSubstr("weight_map"));
}

std::string one_tensor(const std::string& name) {
  return file_of("{\"" + name + R"(": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}})", "abcd");
}

TEST(SafetensorsIndex, MustAgreeWithItsShards) {
  const testing::TempDir dir;
  const auto index = [&](const std::string& weight_map) {
    dir.write("model.safetensors.index.json", "{\"weight_map\": " + weight_map + "}");
    return open_safetensors(dir.path());
  };
  dir.write("1.safetensors", one_tensor("a"));
  dir.write("2.safetensors", one_tensor("b"));
  const auto tensors = index(R"({"a": "1.safetensors", "b": "2.safetensors"})");
  ASSERT_NE(tensors->find("b"), nullptr);
  EXPECT_EQ(tensors->find("b")->file, "2.safetensors");
  EXPECT_EQ(tensors->find("c"), nullptr);
  EXPECT_THAT(message_of([&] { index(R"({"a": "2.safetensors", "b": "1.safetensors"})"); }),
              HasSubstr("tensor a should be in 2.safetensors, but is in 1.safetensors"));
  EXPECT_THAT(message_of([&] { index(R"({"a": "1.safetensors", "c": "1.safetensors"})"); }),
              HasSubstr("tensor c should be in 1.safetensors, but is in no shard"));
  EXPECT_THAT(message_of([&] { index(R"({"a": "1.safetensors", "b": "3.safetensors"})"); }),
              HasSubstr("3.safetensors: no such file"));
  dir.write("2.safetensors", one_tensor("a"));
  EXPECT_THAT(message_of([&] { index(R"({"a": "1.safetensors", "b": "2.safetensors"})"); }),
              HasSubstr("occurs in 1.safetensors and again in 2.safetensors"));
  dir.write("2.safetensors", file_of(R"({"b": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
                                         "extra": {"dtype": "U8", "shape": [1], "data_offsets": [4, 5]}})",
                                     "abcde"));
  EXPECT_THAT(message_of([&] { index(R"({"a": "1.safetensors", "b": "2.safetensors"})"); }),
              HasSubstr("tensor extra of 2.safetensors is not in weight_map"));
}

// Never anything but success or Error, whatever a file's bytes are.
TEST(Safetensors, SurvivesDamage) {
  const std::string good =
      testing::read_all(ETE_SOURCE_DIR "/tests/golden/refuse/no_config/model.safetensors");
  ASSERT_FALSE(parse(good).empty());
  const size_t header_end = 8 + 0x828;
  int refused = 0;
  const auto attempt = [&](const std::string& bytes) {
    try {
      parse(bytes);
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t size = 0; size < header_end + 64; ++size) attempt(good.substr(0, size));
  EXPECT_EQ(refused, static_cast<int>(header_end) + 64);
  std::mt19937 random(1);
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = good.substr(0, header_end + 100);
    bytes.resize(good.size());
    bytes[random() % header_end] ^= static_cast<char>(1 << random() % 8);
    attempt(bytes);
  }
  EXPECT_GT(refused, static_cast<int>(header_end) + 2000);
}

}  // namespace
}  // namespace ete
