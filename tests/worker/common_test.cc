#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "clients/options/command_line.h"
#include "services/common/address.h"
#include "services/common/safe_text.h"
#include "services/common/service_flags.h"
#include "services/common/sha256.h"

namespace ete::service {
namespace {

using testing::HasSubstr;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

TEST(Address, TakesUnixSocketsAndTcp) {
  const Address socket = parse_address("unix:/run/ete/a b%.sock");
  EXPECT_EQ(socket.kind, Address::Kind::unix_socket);
  EXPECT_EQ(socket.path, "/run/ete/a b%.sock");
  EXPECT_EQ(socket.to_string(), "unix:/run/ete/a b%.sock");
  EXPECT_EQ(socket.grpc_target(), "unix:/run/ete/a%20b%25.sock");
  EXPECT_TRUE(socket.is_local());
  const Address tcp = parse_address("10.0.0.1:50051");
  EXPECT_EQ(tcp.kind, Address::Kind::tcp);
  EXPECT_EQ(tcp.host, "10.0.0.1");
  EXPECT_EQ(tcp.port, 50051);
  EXPECT_FALSE(tcp.is_local());
  const Address v6 = parse_address("[::1]:0");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.to_string(), "[::1]:0");
  EXPECT_TRUE(v6.is_local());
}

TEST(Address, KnowsWhatOnlyThisMachineReaches) {
  for (const char* text : {"127.0.0.1:1", "127.8.9.10:1", "localhost:1", "[::1]:1"}) {
    EXPECT_TRUE(parse_address(text).is_local()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "128.0.0.1:1", "example.com:1", "127.0.0.1.example.com:1",
                           "localhost.example.com:1", "[::ffff:10.0.0.1]:1"}) {
    EXPECT_FALSE(parse_address(text).is_local()) << text;
  }
}

TEST(Address, RefusesWhatIsNone) {
  for (const std::string& text :
       {std::string(""), std::string("unix:"), std::string("unix:/") + std::string(107, 'a'),
        std::string("host"), std::string(":1"), std::string("host:"), std::string("host:65536"),
        std::string("host:-1"), std::string("host:1x"), std::string("::1:1"), std::string("[host]:1"),
        std::string("ho st:1"), std::string("[]:1"), std::string("unix:/a\0b", 9),
        std::string("http://host:1")}) {
    EXPECT_THROW(parse_address(text), std::invalid_argument) << text;
  }
}

class SocketFile : public testing::Test {
 protected:
  SocketFile() {
    std::string name = std::filesystem::temp_directory_path() / "ete-common-XXXXXX";
    directory_ = mkdtemp(name.data());
    path_ = directory_ + "/s";
  }
  void TearDown() override {
    std::filesystem::remove_all(directory_);
    if (fd_ >= 0) close(fd_);
  }
  void bind_socket() {
    fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }

  std::string directory_;
  std::string path_;
  int fd_ = -1;
};

TEST_F(SocketFile, StaleOneIsRemoved) {
  bind_socket();
  close(fd_);
  fd_ = -1;
  claim_socket_path(path_);
  EXPECT_FALSE(std::filesystem::exists(path_));
  claim_socket_path(path_);  // nothing there: nothing to do
}

TEST_F(SocketFile, ItsDirectoryIsThere) {
  EXPECT_THROW(claim_socket_path(directory_ + "/none/socket"), std::runtime_error);
  EXPECT_NO_THROW(claim_socket_path("a socket of this directory"));
}

TEST_F(SocketFile, LiveOneIsKept) {
  bind_socket();
  ASSERT_EQ(listen(fd_, 1), 0);
  EXPECT_THROW(claim_socket_path(path_), std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(SocketFile, OtherFilesAreKept) {
  std::ofstream(path_) << "data";
  EXPECT_THROW(claim_socket_path(path_), std::runtime_error);
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST(SafeText, KeepsUtf8AndReplacesTheRest) {
  EXPECT_EQ(safe_text("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(safe_text("\xff|\xc3|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xe2\x82"), "?|?|??|???|????|??");
  EXPECT_EQ(safe_text(std::string("a\nb\0c\x7f", 6)), "a b c ");
}

TEST(SafeText, CutsAtACharacter) {
  EXPECT_EQ(safe_text("\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9", 6), "\xc3\xa9...");
  EXPECT_EQ(safe_text(std::string(5000, 'x')).size(), kMaxStatusMessage);
  EXPECT_EQ(safe_text("exact", 5), "exact");
}

TEST(Sha256, IsThatOfTheStandard) {
  Sha256 abc;  // FIPS 180-2, appendix B.1
  abc.add("a");
  abc.add("bc");
  EXPECT_EQ(hex(abc.finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 empty;
  EXPECT_EQ(hex(empty.finish()), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

struct ParsedFlags {
  ServiceOptions options;
  std::optional<int> exit_code;
  std::string errors;
};

ParsedFlags parse_flags(std::vector<const char*> arguments) {
  ParsedFlags parsed;
  CLI::App app("", "tested");
  add_service_flags(app, parsed.options);
  arguments.insert(arguments.begin(), "tested");
  testing::internal::CaptureStderr();
  parsed.exit_code = parse_command_line(app, static_cast<int>(arguments.size()), arguments.data());
  parsed.errors = testing::internal::GetCapturedStderr();
  return parsed;
}

TEST(ServiceFlags, AreParsed) {
  const ParsedFlags parsed =
      parse_flags({"--listen", "unix:/tmp/x", "--log-level", "debug", "--exit-with-parent", "77",
                   "--drain-grace", "0.5", "--insecure-listen-anywhere"});
  ASSERT_FALSE(parsed.exit_code) << parsed.errors;
  EXPECT_EQ(parsed.options.listen.path, "/tmp/x");
  EXPECT_EQ(parsed.options.log_level, "debug");
  EXPECT_EQ(parsed.options.exit_with_parent, 77);
  EXPECT_EQ(parsed.options.drain_grace.count(), 500);
  EXPECT_TRUE(parsed.options.insecure_listen_anywhere);
}

TEST(ServiceFlags, BadOnesAreNamed) {
  for (const auto& [flag, value] :
       {std::pair("--listen", "nowhere"), std::pair("--log-level", "loud"), std::pair("--drain-grace", "-1"),
        std::pair("--exit-with-parent", "0"), std::pair("--log-format", "xml"),
        std::pair("--socket-mode", "777"), std::pair("--control", "127.0.0.1:1"),
        std::pair("--tls-cert", "cert"), std::pair("--tls-key", "key"), std::pair("--tls-client-ca", "ca")}) {
    const ParsedFlags parsed = parse_flags({"--listen", "unix:/tmp/x", flag, value});
    EXPECT_EQ(parsed.exit_code, 2) << flag;
    EXPECT_THAT(parsed.errors, HasSubstr(flag));
  }
}

TEST(ServiceFlags, WhoMayCall) {
  const ParsedFlags tls =
      parse_flags({"--listen", "unix:/tmp/x", "--tls-cert", "a", "--tls-key", "b", "--socket-mode", "660"});
  ASSERT_FALSE(tls.exit_code) << tls.errors;
  EXPECT_EQ(tls.options.tls.key, "b");
  EXPECT_EQ(tls.options.socket_mode, 0660u);
  EXPECT_FALSE(tls.options.authenticates());
  const ParsedFlags mutual =
      parse_flags({"--listen", "unix:/tmp/x", "--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c"});
  EXPECT_TRUE(mutual.options.authenticates());
  const ParsedFlags tokens = parse_flags({"--listen", "unix:/tmp/x", "--token-file", "a"});
  EXPECT_TRUE(tokens.options.authenticates());
  EXPECT_THAT(security_arguments(tokens.options), testing::Contains("--token-file=a"));
}

TEST(ServiceFlags, OnlyLoopbackWithoutTheFlag) {
  EXPECT_FALSE(refuse_listen("--listen", parse_address("127.0.0.1:1"), false));
  EXPECT_FALSE(refuse_listen("--listen", parse_address("0.0.0.0:1"), true));
  const auto refused = refuse_listen("--listen", parse_address("0.0.0.0:1"), false);
  ASSERT_TRUE(refused);
  EXPECT_THAT(*refused, HasSubstr("--listen: 0.0.0.0:1"));
  EXPECT_THAT(*refused, HasSubstr("--insecure-listen-anywhere"));
}

}  // namespace
}  // namespace ete::service
