#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ete::service {

struct TokenLimits {
  int64_t concurrent = 0;         // requests at a time; 0: any number
  int64_t tokens_per_minute = 0;  // of prompts and replies; 0: any number
  bool shared_cache = false;      // finds cached prefixes of the other tokens that share
};

// Why a request may not begin, with the limit.
struct TokenRefusal {
  std::string why;
  std::optional<std::chrono::milliseconds> retry_after;  // absent: when one that runs has ended
};

// Whoever has one of the tokens, and what they do now. Thread-safe.
class TokenHolder {
 public:
  using Clock = std::chrono::steady_clock;

  TokenHolder(std::string name, std::string digest) : name_(std::move(name)), digest_(std::move(digest)) {}

  const std::string& name() const { return name_; }
  const std::string& digest() const { return digest_; }  // SHA-256 of the token, 32 bytes
  void set_limits(const TokenLimits& limits);
  TokenLimits limits() const;

  // A request begins: absent; or why it may not. The tokens of a minute are a store that fills at an even
  // rate; a request begins while any are left, and may overdraw it.
  std::optional<TokenRefusal> enter(Clock::time_point now = Clock::now());
  // Once for each enter() that let a request in.
  void leave();
  void spend(int64_t tokens);

  // The cache_salt of a request: no other token's, unless the cache is shared, and never one that a client
  // can name. Salts that a worker gave for a restored session stay: nobody guesses them.
  std::string salted(const std::string& salt) const;

 private:
  void refill(Clock::time_point now);  // under the mutex

  const std::string name_;
  const std::string digest_;
  mutable std::mutex mutex_;  // guards what follows
  TokenLimits limits_;
  int64_t running_ = 0;
  double left_ = 0;  // tokens
  std::optional<Clock::time_point> refilled_;
};

// The bearer tokens that a server takes. A line each: NAME SHA256 [concurrent=N] [tokens-per-minute=N]
// [cache=own|shared], where SHA256 is that of the token in hexadecimal; "#" begins a comment. The file is
// read again when it has changed; one that is wrong then is reported and changes nothing. Thread-safe.
class TokenFile {
 public:
  // std::runtime_error naming file and line: not readable, others may write it, or a wrong line.
  explicit TokenFile(std::string path);

  // Null: it is none of them. Takes as long for any token that is none.
  std::shared_ptr<TokenHolder> find(std::string_view token);

 private:
  using Holders = std::vector<std::shared_ptr<TokenHolder>>;
  Holders read(const Holders& known);
  void reload();  // under the mutex

  const std::string path_;
  std::mutex mutex_;  // guards what follows
  Holders holders_;
  struct stat seen_ {};
  std::chrono::steady_clock::time_point looked_;
};

// The token in a file of one line, read again when the file has changed. Thread-safe.
class SecretFile {
 public:
  // std::runtime_error naming the file: not readable, others may read it, empty or not of printable ASCII.
  explicit SecretFile(std::string path);
  std::string token();

 private:
  std::string read();

  const std::string path_;
  std::mutex mutex_;  // guards what follows
  struct stat seen_ {};
  std::string token_;
};

// What a token's holder may be called: 1 to 64 letters, digits or any of . _ - @.
bool is_token_name(std::string_view name);

// A new token, 256 random bits, and the SHA-256 of one in hexadecimal, as a token file holds it.
std::string make_token();
std::string token_digest_hex(std::string_view token);

}  // namespace ete::service
