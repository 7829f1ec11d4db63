// Streams the continuation of a prompt to stdout; everything else is said on stderr.
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ete_client.h"

namespace {

namespace client = ete::client;
namespace v1 = ete::v1;
using std::chrono::milliseconds;

constexpr char kUsage[] = R"(generate [OPTIONS] ADDRESS PROMPT
ADDRESS is host:port or unix:PATH
  --max-tokens N  --seed N  --temperature X  --top-p X
  --stop TEXT           may be repeated
  --logprobs N          a line for each token, with N others
  --progress            tell how much of the prompt is processed
  --deadline SECONDS
  --cancel-after N      cancel after N pieces
  --attempts N          1: do not try again [5]
  --tls                 with the system's root certificates
  --root-cert FILE      TLS with these root certificates
  --cert FILE --key FILE  the client's own certificate and its key
  --server-name NAME    of the server's certificate [that of the address]
  --token-file FILE     holds the bearer token
  --linger SECONDS      stay connected this long afterwards
)";

struct Arguments {
  std::string address;
  v1::GenerateRequest request;
  client::Options options;
  client::OnProgress on_progress;
  std::optional<milliseconds> deadline;
  int cancel_after = 0;
  milliseconds linger{0};
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument(path + ": cannot be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string read_token(const std::string& path) {
  std::string token = read_file(path);
  token.erase(token.find_last_not_of(" \r\n\t") + 1);
  return token;
}

milliseconds seconds(const std::string& text) {
  return milliseconds(static_cast<int64_t>(std::stod(text) * 1000));
}

client::Tls& tls(client::Options& options) {
  if (!options.tls) options.tls.emplace();
  return *options.tls;
}

void show_progress(const v1::PromptProgress& progress) {
  std::cerr << "progress " << progress.processed_tokens() << " of " << progress.prompt_tokens() << '\n';
}

// What each option does with its value.
std::map<std::string, std::function<void(const std::string&)>> setters(Arguments& a) {
  v1::Sampling& sampling = *a.request.mutable_sampling();
  v1::Stopping& stopping = *a.request.mutable_stopping();
  return {
      {"--max-tokens", [&](const std::string& v) { stopping.set_max_tokens(std::stoi(v)); }},
      {"--seed", [&](const std::string& v) { sampling.set_seed(std::stoull(v)); }},
      {"--temperature", [&](const std::string& v) { sampling.set_temperature(std::stof(v)); }},
      {"--top-p", [&](const std::string& v) { sampling.set_top_p(std::stof(v)); }},
      {"--stop", [&](const std::string& v) { stopping.add_stop(v); }},
      {"--logprobs", [&](const std::string& v) { a.request.mutable_logprobs()->set_top(std::stoi(v)); }},
      {"--deadline", [&](const std::string& v) { a.deadline = seconds(v); }},
      {"--cancel-after", [&](const std::string& v) { a.cancel_after = std::stoi(v); }},
      {"--attempts", [&](const std::string& v) { a.options.retry.attempts = std::stoi(v); }},
      {"--root-cert", [&](const std::string& v) { tls(a.options).root_certificates = read_file(v); }},
      {"--cert", [&](const std::string& v) { tls(a.options).certificate = read_file(v); }},
      {"--key", [&](const std::string& v) { tls(a.options).private_key = read_file(v); }},
      {"--server-name", [&](const std::string& v) { tls(a.options).server_name = v; }},
      {"--token-file", [&](const std::string& v) { a.options.token = read_token(v); }},
      {"--linger", [&](const std::string& v) { a.linger = seconds(v); }},
  };
}

// `words` are those behind the program's name. Throws std::invalid_argument or std::out_of_range.
void parse(const std::vector<std::string>& words, Arguments& a) {
  const auto options = setters(a);
  size_t next = 0;
  for (; next < words.size() && words[next].rfind("--", 0) == 0; ++next) {
    if (words[next] == "--tls") {
      tls(a.options);
      continue;
    }
    if (words[next] == "--progress") {
      a.on_progress = show_progress;
      continue;
    }
    const auto option = options.find(words[next]);
    if (option == options.end() || next + 1 == words.size()) {
      throw std::invalid_argument(words[next] + ": not an option, or without a value\n" + kUsage);
    }
    option->second(words[++next]);
  }
  if (words.size() - next != 2) {
    throw std::invalid_argument(std::string("ADDRESS and PROMPT are expected\n") + kUsage);
  }
  a.address = words[next];
  a.request.set_text(words[next + 1]);
}

void show(const v1::Piece& piece) {
  std::cout << piece.text() << std::flush;
  for (const v1::TokenLogprobs& token : piece.logprobs()) {
    std::fprintf(stderr, "logprob %d %.4f", token.id(), token.logprob());
    for (int i = 0; i < token.top_ids_size(); ++i) {
      std::fprintf(stderr, " %d:%.4f", token.top_ids(i), token.top_logprobs(i));
    }
    std::fputc('\n', stderr);
  }
}

void generate(client::Client& client, const Arguments& a) {
  client::Stream stream = client.generate(a.request, a.deadline, a.on_progress);
  int pieces = 0;
  while (const std::optional<v1::Piece> piece = stream.next()) {
    show(*piece);
    if (++pieces == a.cancel_after) stream.cancel();
  }
  const v1::Finish& finish = stream.finish();
  const std::string reason = v1::FinishReason_Name(finish.reason()).substr(sizeof("FINISH_REASON_") - 1);
  std::cerr << "finish reason=" << reason << " pieces=" << pieces
            << " prompt_tokens=" << finish.prompt_tokens()
            << " generated_tokens=" << finish.generated_tokens() << '\n';
}

int run(const std::vector<std::string>& words) {
  Arguments a;
  parse(words, a);
  a.options.on_retry = [](const client::Error& error, int attempt, milliseconds delay) {
    std::fprintf(stderr, "retry attempt=%d delay=%.3f %s\n", attempt,
                 static_cast<double>(delay.count()) / 1000, error.what());
  };
  client::Client client(a.address, a.options);
  int code = 0;
  try {
    generate(client, a);
  } catch (const client::Error& error) {
    std::cerr << "error code=" << error.code_name()
              << " field=" << (error.field().empty() ? "-" : error.field()) << ' ' << error.message() << '\n';
    code = 1;
  }
  std::this_thread::sleep_for(a.linger);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "generate: " << error.what() << '\n';
    return 2;
  }
}
