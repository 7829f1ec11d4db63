#include "engine/weights/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/weights/untrusted.h"
#include "tests/weights/expect_error.h"
#include "tests/weights/temp_dir.h"

namespace ete {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

TEST(MappedFile, HoldsTheBytesAndKeepsThemAfterPagesAreDropped) {
  const testing::TempDir dir;
  const std::string text(100'000, 'x');
  const MappedFile file(dir.write("a", text));
  EXPECT_EQ(as_text(file.bytes()), text);
  drop_pages(file.bytes().data(), file.bytes().size());
  EXPECT_EQ(as_text(file.bytes()), text);
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const testing::TempDir dir;
  EXPECT_THAT(message_of([&] { MappedFile file(dir.path()); }), HasSubstr("is a directory"));
  EXPECT_THAT(message_of([&] { MappedFile file(dir.file("none")); }), HasSubstr("No such file"));
  EXPECT_THAT(message_of([&] { MappedFile file(dir.write("empty", "")); }), HasSubstr("empty"));
  ASSERT_EQ(::mkfifo(dir.file("fifo").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { MappedFile file(dir.file("fifo")); }), HasSubstr("not a regular file"));
}

TEST(MappedFile, NamesAMissingPermission) {
  const testing::TempDir dir;
  const std::string path = dir.write("secret", "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const uid_t user = ::geteuid();
  constexpr uid_t kNobody = 65534;
  if (user == 0) {  // root may read everything
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  EXPECT_THAT(message_of([&] { MappedFile file(path); }), HasSubstr("Permission denied"));
  ASSERT_EQ(::seteuid(user), 0);
}

TEST(ReadFile, ReadsAtMostTheBound) {
  const testing::TempDir dir;
  const std::string path = dir.write("a", "12345");
  EXPECT_EQ(read_file(path, 5), "12345");
  EXPECT_THAT(message_of([&] { read_file(path, 4); }), HasSubstr("5 bytes, more than the 4"));
  EXPECT_EQ(read_file(dir.write("empty", ""), 4), "");
}

TEST(ParseJson, RefusesDepthRepetitionAndGarbage) {
  EXPECT_THAT(message_of([] { parse_json(std::string(100'000, '['), "f"); }),
              HasSubstr("nested deeper than 32"));
  EXPECT_THAT(message_of([] { parse_json(R"({"a": {"b": 1, "b": 2}})", "f"); }),
              HasSubstr("\"b\" occurs twice"));
  EXPECT_NO_THROW(parse_json(R"({"b": {"b": 1}, "c": [{"b": 1}, {"b": 2}]})", "f"));
  EXPECT_THAT(message_of([] { parse_json("{\"a\": \xff}", "f"); }), HasSubstr("f: not valid JSON"));
  EXPECT_THAT(message_of([] { parse_json("[1, {\"a\": 2}, 3]", "f", {.max_values = 3}); }),
              HasSubstr("f: JSON of more than 3 keys and values"));
  EXPECT_THAT(message_of([] { parse_json("[1, 2", "f"); }), HasSubstr("f: not valid JSON"));
  EXPECT_THAT(message_of([] { parse_json("[1, 2]", "f", {.max_bytes = 5}); }), HasSubstr("6 bytes of JSON"));
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(printable("a\n\x80"
                      "b"),
            "a\\x0a\\x80b");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace ete
