#include "services/common/token_file.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "services/common/sha256.h"

namespace ete::service {
namespace {

constexpr std::chrono::milliseconds kLookInterval{500};
constexpr size_t kMostFileBytes = 1 << 20;
constexpr size_t kMostNameBytes = 64;
constexpr size_t kDigestBytes = 32;
constexpr std::string_view kRestored = "restored.";
constexpr double kMinute = 60;

std::string digest_of(std::string_view bytes) {
  Sha256 sha256;
  sha256.add(bytes);
  return sha256.finish();
}

std::string hex_of(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

std::optional<std::string> bytes_of_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned char byte = 0;
    if (std::from_chars(&hex[i], &hex[i] + 2, byte, 16).ptr != &hex[i] + 2) return std::nullopt;
    bytes += static_cast<char>(byte);
  }
  if (hex.size() != 2 * bytes.size()) return std::nullopt;
  return bytes;
}

bool same(const struct stat& a, const struct stat& b) {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

// forbidden: of the permissions of group and others.
std::string read_file(const std::string& path, mode_t forbidden, struct stat& info) {
  if (stat(path.c_str(), &info) != 0) throw std::runtime_error(path + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) throw std::runtime_error(path + ": not a file");
  if ((info.st_mode & forbidden) != 0) {
    throw std::runtime_error(fmt::format("{}: its mode {:o} lets others {} it; expected one like {:o}", path,
                                         info.st_mode & 0777, (forbidden & 044) != 0 ? "read" : "write",
                                         info.st_mode & 0777 & ~forbidden));
  }
  if (info.st_size > static_cast<off_t>(kMostFileBytes)) {
    throw std::runtime_error(fmt::format("{}: {} bytes; at most {}", path, info.st_size, kMostFileBytes));
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return text;
}

int64_t number_of(const std::string& field, const std::string& value) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 1) {
    throw std::runtime_error("\"" + field + "=" + value + "\": expected a whole number of at least 1");
  }
  return number;
}

struct TokenLine {
  std::string name;
  std::string digest;
  TokenLimits limits;
};

void read_option(const std::string& option, TokenLimits& limits) {
  const size_t equals = option.find('=');
  const std::string field = option.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : option.substr(equals + 1);
  if (field == "concurrent") {
    limits.concurrent = number_of(field, value);
  } else if (field == "tokens-per-minute") {
    limits.tokens_per_minute = number_of(field, value);
  } else if (field == "cache" && (value == "shared" || value == "own")) {
    limits.shared_cache = value == "shared";
  } else {
    throw std::runtime_error("\"" + option +
                             "\": expected concurrent=N, tokens-per-minute=N, cache=own or cache=shared");
  }
}

// Never repeats what should be a digest: somebody may have put the token itself there.
TokenLine parse_line(const std::string& line) {
  std::istringstream words(line);
  TokenLine parsed;
  std::string hex;
  words >> parsed.name >> hex;
  if (!is_token_name(parsed.name)) {
    throw std::runtime_error("the name: expected at most 64 letters, digits or any of . _ - @");
  }
  const auto digest = bytes_of_hex(hex);
  if (!digest || digest->size() != kDigestBytes) {
    throw std::runtime_error("after the name: expected the SHA-256 of the token, 64 hexadecimal digits");
  }
  parsed.digest = *digest;
  for (std::string option; words >> option;) read_option(option, parsed.limits);
  return parsed;
}

}  // namespace

bool is_token_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-@").find(c) != std::string_view::npos;
  });
}

void TokenHolder::set_limits(const TokenLimits& limits) {
  const std::lock_guard lock(mutex_);
  if (limits.tokens_per_minute != limits_.tokens_per_minute) refilled_.reset();
  limits_ = limits;
}

TokenLimits TokenHolder::limits() const {
  const std::lock_guard lock(mutex_);
  return limits_;
}

void TokenHolder::refill(Clock::time_point now) {
  const auto most = static_cast<double>(limits_.tokens_per_minute);
  if (!refilled_) {
    left_ = most;
  } else {
    left_ = std::min(most, left_ + most / kMinute * std::chrono::duration<double>(now - *refilled_).count());
  }
  refilled_ = now;
}

std::optional<TokenRefusal> TokenHolder::enter(Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  if (limits_.concurrent != 0 && running_ >= limits_.concurrent) {
    return TokenRefusal{
        fmt::format("the token {} has {} requests running, as many as it may have", name_, running_),
        std::nullopt};
  }
  if (limits_.tokens_per_minute != 0) {
    refill(now);
    if (left_ <= 0) {
      const double rate = static_cast<double>(limits_.tokens_per_minute) / kMinute;
      const double wait = std::ceil((1 - left_) / rate);
      return TokenRefusal{
          fmt::format("the token {} has used up its {} tokens a minute; try again in {:.0f} s", name_,
                      limits_.tokens_per_minute, wait),
          std::chrono::seconds(static_cast<int64_t>(wait))};
    }
  }
  ++running_;
  return std::nullopt;
}

void TokenHolder::leave() {
  const std::lock_guard lock(mutex_);
  --running_;
}

void TokenHolder::spend(int64_t tokens) {
  const std::lock_guard lock(mutex_);
  left_ -= static_cast<double>(tokens);
}

std::string TokenHolder::salted(const std::string& salt) const {
  if (salt.starts_with(kRestored)) return salt;
  const std::lock_guard lock(mutex_);
  return digest_of((limits_.shared_cache ? "shared." : "own." + digest_ + ".") + salt);
}

TokenFile::TokenFile(std::string path) : path_(std::move(path)) {
  holders_ = read({});
  looked_ = std::chrono::steady_clock::now();
}

TokenFile::Holders TokenFile::read(const Holders& known) {
  std::istringstream text(read_file(path_, 022, seen_));
  std::vector<TokenLine> lines;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      TokenLine parsed = parse_line(line);
      for (const TokenLine& other : lines) {
        if (other.name == parsed.name) throw std::runtime_error("the name " + other.name + " is there twice");
        if (other.digest == parsed.digest) throw std::runtime_error("the token is that of " + other.name);
      }
      lines.push_back(std::move(parsed));
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format("{}:{}: {}", path_, number, error.what()));
    }
  }
  if (lines.empty()) throw std::runtime_error(path_ + ": holds no token; `ete token` makes one");
  Holders holders;
  for (const TokenLine& line : lines) {
    const auto old = std::find_if(known.begin(), known.end(), [&](const auto& holder) {
      return holder->digest() == line.digest && holder->name() == line.name;
    });
    holders.push_back(old != known.end() ? *old : std::make_shared<TokenHolder>(line.name, line.digest));
    // What runs goes on under the new limits.
    holders.back()->set_limits(line.limits);
  }
  return holders;
}

void TokenFile::reload() {
  const auto now = std::chrono::steady_clock::now();
  if (now - looked_ < kLookInterval) return;
  looked_ = now;
  struct stat info {};
  if (stat(path_.c_str(), &info) == 0 && same(info, seen_)) return;
  try {
    holders_ = read(holders_);
    spdlog::info("{}: read again, {} tokens", path_, holders_.size());
  } catch (const std::exception& error) {
    spdlog::error("{}; the tokens stay as they were", error.what());
  }
}

std::shared_ptr<TokenHolder> TokenFile::find(std::string_view token) {
  const std::string digest = digest_of(token);
  const std::lock_guard lock(mutex_);
  reload();
  std::shared_ptr<TokenHolder> found;
  for (const auto& holder : holders_) {
    if (CRYPTO_memcmp(holder->digest().data(), digest.data(), kDigestBytes) == 0) found = holder;
  }
  return found;
}

SecretFile::SecretFile(std::string path) : path_(std::move(path)) { token_ = read(); }

std::string SecretFile::read() {
  std::string text = read_file(path_, 077, seen_);
  text.resize(std::min(text.find_first_of("\r\n"), text.size()));
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (text.empty() || !printable) {
    throw std::runtime_error(path_ + ": expected a token of printable ASCII on the first line");
  }
  return text;
}

std::string SecretFile::token() {
  const std::lock_guard lock(mutex_);
  struct stat info {};
  if (stat(path_.c_str(), &info) == 0 && same(info, seen_)) return token_;
  try {
    token_ = read();
  } catch (const std::exception& error) {
    spdlog::error("{}; the token stays as it was", error.what());
  }
  return token_;
}

std::string make_token() {
  std::string bytes(kDigestBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1) {
    throw std::runtime_error("no random numbers from OpenSSL");
  }
  return "ete-" + hex_of(bytes);
}

std::string token_digest_hex(std::string_view token) { return hex_of(digest_of(token)); }

}  // namespace ete::service
