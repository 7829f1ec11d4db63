#include "services/common/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "services/common/access.h"

namespace ete::service {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class TokenFileTest : public testing::Test {
 public:
  TokenFileTest() {
    std::string name = std::filesystem::temp_directory_path() / "ete-tokens-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    directory_ = name;
  }
  ~TokenFileTest() override { std::filesystem::remove_all(directory_); }

 protected:
  std::string write(const std::string& text, mode_t mode = 0600) {
    std::string path = directory_ / "tokens";
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path;
  }
  std::string refusal(const std::string& text, mode_t mode = 0600) {
    try {
      const TokenFile file(write(text, mode));
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }

  std::filesystem::path directory_;
  const std::string line_of_a_ = "a " + token_digest_hex("token-a");
  const std::string line_of_b_ = "b " + token_digest_hex("token-b");
};

TEST_F(TokenFileTest, FindsWhoHasATokenAndNobodyElse) {
  TokenFile file(write("# who\n\n" + line_of_a_ + " # comment\n" + line_of_b_ + "\n"));
  ASSERT_NE(file.find("token-a"), nullptr);
  EXPECT_EQ(file.find("token-a")->name(), "a");
  EXPECT_EQ(file.find("token-b")->name(), "b");
  EXPECT_EQ(file.find("token-a")->digest().size(), 32u);
  for (const char* wrong : {"", "token", "token-a ", "token-aa", "a"}) EXPECT_EQ(file.find(wrong), nullptr);
}

TEST_F(TokenFileTest, ComparesAllOfADigest) {
  for (const size_t digit : {0, 31, 63}) {
    std::string near = token_digest_hex("token-a");
    near[digit] = near[digit] == '0' ? '1' : '0';
    EXPECT_EQ(TokenFile(write("a " + near + "\n")).find("token-a"), nullptr) << digit;
  }
}

TEST_F(TokenFileTest, RefusesWhatItCannotTake) {
  EXPECT_THAT(refusal("a"), HasSubstr("tokens:1: after the name"));
  EXPECT_THAT(refusal("a token-a"), testing::Not(HasSubstr("token-a")));
  EXPECT_THAT(refusal("\na/b " + token_digest_hex("x")), HasSubstr("tokens:2: the name"));
  EXPECT_THAT(refusal(line_of_a_ + "0"), HasSubstr("64 hexadecimal digits"));
  EXPECT_THAT(refusal(line_of_a_ + "\na " + token_digest_hex("x")), HasSubstr("the name a is there twice"));
  EXPECT_THAT(refusal(line_of_a_ + "\nc " + token_digest_hex("token-a")), HasSubstr("that of a"));
  EXPECT_THAT(refusal(line_of_a_ + " concurrent=0"), HasSubstr("\"concurrent=0\""));
  EXPECT_THAT(refusal(line_of_a_ + " tokens-per-minute=1e3"), HasSubstr("whole number"));
  EXPECT_THAT(refusal(line_of_a_ + " cache=mine"), HasSubstr("cache=shared"));
  EXPECT_THAT(refusal("# none\n"), HasSubstr("holds no token"));
  EXPECT_THAT(refusal(line_of_a_, 0666), HasSubstr("lets others write it"));
  EXPECT_THROW(TokenFile("/none/tokens"), std::runtime_error);
}

TEST_F(TokenFileTest, ASecretIsItsOwnersOnly) {
  EXPECT_EQ(SecretFile(write("token-a\n")).token(), "token-a");
  EXPECT_THROW(SecretFile(write("token-a\n", 0640)), std::runtime_error);
  EXPECT_THROW(SecretFile(write("\ntoken-a\n")), std::runtime_error);
  EXPECT_THROW(SecretFile(write("token a\n")), std::runtime_error);
}

TEST_F(TokenFileTest, TokensAreNew) {
  const std::string token = make_token();
  EXPECT_EQ(token.size(), 4u + 64u);
  EXPECT_NE(token, make_token());
}

TEST(TokenHolderTest, CountsWhatRuns) {
  TokenHolder holder("a", std::string(32, 'a'));
  holder.set_limits({.concurrent = 2});
  EXPECT_FALSE(holder.enter());
  EXPECT_FALSE(holder.enter());
  ASSERT_TRUE(holder.enter());
  EXPECT_THAT(holder.enter()->why, HasSubstr("2 requests running"));
  holder.leave();
  EXPECT_FALSE(holder.enter());
}

TEST(TokenHolderTest, AMinutesTokensComeBackEvenly) {
  const auto start = TokenHolder::Clock::now();
  TokenHolder holder("a", std::string(32, 'a'));
  holder.set_limits({.tokens_per_minute = 60});
  EXPECT_FALSE(holder.enter(start));
  holder.spend(90);  // a request may overdraw what is left
  const auto refused = holder.enter(start);
  ASSERT_TRUE(refused);
  EXPECT_THAT(refused->why, HasSubstr("60 tokens a minute; try again in 31 s"));
  EXPECT_EQ(refused->retry_after, seconds(31));
  EXPECT_TRUE(holder.enter(start + seconds(30)));
  EXPECT_FALSE(holder.enter(start + seconds(31)));
  holder.spend(1);
  EXPECT_TRUE(holder.enter(start + seconds(31)));
  // It holds no more than a minute's.
  EXPECT_FALSE(holder.enter(start + seconds(3600)));
  holder.spend(60);
  EXPECT_TRUE(holder.enter(start + seconds(3600)));
}

TEST(TokenHolderTest, SaltsAreItsOwnUnlessItShares) {
  TokenHolder a("a", std::string(32, 'a')), b("b", std::string(32, 'b'));
  EXPECT_EQ(a.salted("x"), a.salted("x"));
  EXPECT_NE(a.salted("x"), a.salted("y"));
  EXPECT_NE(a.salted("x"), b.salted("x"));
  EXPECT_NE(a.salted(""), "");
  EXPECT_EQ(a.salted("restored.0123"), "restored.0123");
  a.set_limits({.shared_cache = true});
  EXPECT_NE(a.salted("x"), b.salted("x"));
  b.set_limits({.shared_cache = true});
  EXPECT_EQ(a.salted("x"), b.salted("x"));
}

TEST_F(TokenFileTest, AccessTakesABearersToken) {
  int refused = 0;
  Access access(write(line_of_a_ + "\n"), [&] { ++refused; });
  ASSERT_TRUE(access.admit("Bearer token-a", "", "peer"));
  EXPECT_EQ(access.admit("bearer token-a", "", "peer")->name(), "a");
  for (const char* wrong : {"", "token-a", "Basic token-a", "Bearer", "Bearer ", "Bearer token-b"}) {
    EXPECT_FALSE(access.admit(wrong, "", "peer")) << wrong;
  }
  EXPECT_EQ(refused, 6);
  Access open("");
  EXPECT_EQ(open.admit("", "", "peer")->name(), "");
}

TEST(TraceparentTest, IsTakenAsItIsOrNotAtAll) {
  const std::string valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  EXPECT_EQ(valid_traceparent(valid), valid);
  for (const std::string& wrong : {std::string(), valid + "0", "01" + valid.substr(2),
                                   "00-0AF" + valid.substr(6), valid.substr(0, 54) + "\n"}) {
    EXPECT_EQ(valid_traceparent(wrong), "") << wrong;
  }
}

}  // namespace
}  // namespace ete::service
