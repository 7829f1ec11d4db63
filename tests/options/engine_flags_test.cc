#include "clients/options/engine_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/options/command_line.h"

namespace ete {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Parsed {
  EngineOptions options;
  std::optional<int> exit_code;
  std::string errors;
};

Parsed parse(std::vector<std::string> arguments) {
  Parsed parsed;
  CLI::App app("", "tested");
  add_model_flag(app, parsed.options.model);
  add_engine_flags(app, parsed.options);
  std::vector<const char*> argv{"tested"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStderr();
  parsed.exit_code = parse_command_line(app, static_cast<int>(argv.size()), argv.data());
  parsed.errors = testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(EngineFlags, DefaultsAreThoseOfEngineOptions) {
  const Parsed parsed = parse({"--model", "m.gguf"});
  EXPECT_FALSE(parsed.exit_code) << parsed.errors;
  EXPECT_EQ(parsed.options.model, "m.gguf");
  EXPECT_EQ(parsed.options.device, "auto");
  EXPECT_EQ(parsed.options.slots, -1);
  EXPECT_EQ(parsed.options.math, "");
  EXPECT_EQ(parsed.options.max_sessions, 16);
  EXPECT_EQ(parsed.options.context, -1);
  EXPECT_EQ(parsed.options.kv_type, "f16");
}

TEST(EngineFlags, EachFlagReachesItsMember) {
  const Parsed parsed =
      parse({"--model",        "m",    "--device",         "cuda:1", "--resident-layers", "-1",
             "--slots",        "3",    "--math",           "fast",   "--kernels",         "avx2",
             "--home",         "mmap", "--link-limit",     "12G",    "--vram-budget",     "0.5G",
             "--kv",           "host", "--kv-type",        "bf16",   "--vocab",           "device",
             "--weights",      "w8",   "--max-sessions",   "64",     "--context",         "131072",
             "--chunk",        "512",  "--host-share",     "0.25",   "--threads",         "7",
             "--prefix-cache", "0.5G", "--accept-unknown", "a",      "--accept-unknown",  "b"});
  ASSERT_FALSE(parsed.exit_code) << parsed.errors;
  const EngineOptions& options = parsed.options;
  EXPECT_EQ(options.device, "cuda:1");
  EXPECT_EQ(options.resident_layers, "-1");
  EXPECT_EQ(options.slots, 3);
  EXPECT_EQ(options.math, "fast");
  EXPECT_EQ(options.kernels, "avx2");
  EXPECT_EQ(options.home, "mmap");
  EXPECT_EQ(options.link_limit, uint64_t{12} << 30);
  EXPECT_EQ(options.vram_budget, uint64_t{1} << 29);
  EXPECT_EQ(options.kv, "host");
  EXPECT_EQ(options.kv_type, "bf16");
  EXPECT_EQ(options.vocab, "device");
  EXPECT_EQ(options.weights, "w8");
  EXPECT_EQ(options.max_sessions, 64);
  EXPECT_EQ(options.context, 131072);
  EXPECT_EQ(options.chunk, 512);
  EXPECT_DOUBLE_EQ(options.host_share, 0.25);
  EXPECT_EQ(options.threads, 7);
  EXPECT_EQ(options.prefix_cache, int64_t{1} << 29);
  EXPECT_THAT(options.accept_unknown, ElementsAre("a", "b"));
}

TEST(EngineFlags, LimitsOfTheQueue) {
  const EngineOptions options =
      parse({"--model", "m", "--max-queued", "0", "--max-queued-tokens", "200000"}).options;
  EXPECT_EQ(options.max_queued, 0);
  EXPECT_EQ(options.max_queued_tokens, 200000);
  EXPECT_EQ(parse({"--model", "m"}).options.max_queued, -1);
}

TEST(EngineFlags, AutoIsAccepted) {
  const Parsed parsed = parse({"--model", "m", "--resident-layers", "auto", "--slots", "auto", "--host-share",
                               "auto", "--prefix-cache", "auto"});
  ASSERT_FALSE(parsed.exit_code) << parsed.errors;
  EXPECT_EQ(parsed.options.resident_layers, "auto");
  EXPECT_EQ(parsed.options.slots, -1);
  EXPECT_EQ(parsed.options.host_share, -1);
  EXPECT_EQ(parsed.options.prefix_cache, -1);
  EXPECT_EQ(parse({"--model", "m", "--prefix-cache", "0"}).options.prefix_cache, 0);
}

class BadFlag : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(BadFlag, IsAUsageErrorInOneLineThatNamesIt) {
  const auto& [flag, value] = GetParam();
  const Parsed parsed = parse({"--model", "m", flag, value});
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.errors, HasSubstr(flag));
  EXPECT_THAT(parsed.errors, HasSubstr(value));
  EXPECT_EQ(parsed.errors.find('\n'), parsed.errors.size() - 1) << parsed.errors;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadFlag,
    testing::Values(std::pair("--device", "gpu"), std::pair("--prefix-cache", "-1"),
                    std::pair("--prefix-cache", "all"), std::pair("--device", "cuda:x"),
                    std::pair("--device", "cuda:-1"), std::pair("--resident-layers", "-2"),
                    std::pair("--resident-layers", "many"), std::pair("--slots", "1"),
                    std::pair("--slots", "2.5"), std::pair("--math", "Exact"), std::pair("--kernels", "sse"),
                    std::pair("--link-limit", "0"), std::pair("--home", "disk"),
                    std::pair("--vram-budget", "1T"), std::pair("--vram-budget", "-1G"),
                    std::pair("--vram-budget", "nanG"), std::pair("--vram-budget", "99999999999G"),
                    std::pair("--kv", "gpu"), std::pair("--kv-type", "q8"), std::pair("--vocab", "none"),
                    std::pair("--weights", "w2"), std::pair("--max-sessions", "0"),
                    std::pair("--max-sessions", "4294967297"), std::pair("--context", "0"),
                    std::pair("--max-queued", "-1"), std::pair("--max-queued-tokens", "0"),
                    std::pair("--chunk", "x"), std::pair("--host-share", "1.5"),
                    std::pair("--host-share", "nan"), std::pair("--threads", "-3")));

TEST(EngineFlags, MissingModelAndUnknownFlagAreUsageErrors) {
  const Parsed missing = parse({});
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.errors, HasSubstr("--model"));
  const Parsed unknown = parse({"--model", "m", "--nonsense", "1"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.errors, HasSubstr("--nonsense"));
  const Parsed twice = parse({"--model", "m", "--slots", "2", "--slots", "3"});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_THAT(twice.errors, HasSubstr("--slots"));
}

TEST(EngineFlags, HelpExitsWithZero) {
  testing::internal::CaptureStdout();
  const Parsed parsed = parse({"--help"});
  const std::string help = testing::internal::GetCapturedStdout();
  EXPECT_EQ(parsed.exit_code, 0);
  EXPECT_THAT(help, HasSubstr("--vram-budget SIZE"));
}

TEST(ParseSize, TakesSuffixesAndFractions) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("3K"), 3072u);
  EXPECT_EQ(parse_size("1.5m"), 1572864u);
  EXPECT_EQ(parse_size("0.1G"), 107374182u);
  EXPECT_EQ(parse_size("9007199254740993"), 9007199254740993u);
  EXPECT_EQ(parse_size("17179869183G"), 17179869183u << 30);
}

TEST(ParseSize, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "K", "-1", "1.5", "1KB", "1 K", " 1", "0x10", "infG", "17179869184G", "1e30G"}) {
    EXPECT_FALSE(parse_size(text)) << text;
  }
}

TEST(ErrorLine, IsOneLine) { EXPECT_EQ(error_line("ete", "a\nb\n"), "ete: a b"); }

}  // namespace
}  // namespace ete
