#include "tests/service/serve_process.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace ete {
namespace {

constexpr std::chrono::seconds kLongest{60};
constexpr const char* kEte = ETE_BINARY_DIR "/bin/ete";

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int count_of(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

cli::Child start(const cli::PrivateDirectory& directory, const std::vector<std::string>& arguments) {
  cli::ChildCommand command{
      kEte, {"serve", "--listen=unix:" + directory.file("front.sock")}, directory.file("log")};
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  return cli::Child::start(command);
}

std::shared_ptr<grpc::Channel> channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

ServeProcess::ServeProcess(const std::vector<std::string>& arguments)
    : child_(start(directory_, arguments)) {}

std::string ServeProcess::log() const { return contents(log_file()); }

bool ServeProcess::wait_for_log(const std::string& text, int count) {
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (count_of(log(), text) < count) {
    if (child_.poll() || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

std::string ServeProcess::worker_address() const {
  const std::string text = log();
  const std::string mark = "worker at ";
  const size_t begin = text.find(mark, text.find("ready at "));
  if (begin == std::string::npos) return "";
  return text.substr(begin + mark.size(), text.find('\n', begin) - begin - mark.size());
}

pid_t ServeProcess::server(const std::string& program) const {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = contents(entry.path().string() + "/status");
    if (status.find("Name:\t" + program + "\n") != std::string::npos &&
        status.find("PPid:\t" + std::to_string(child_.pid()) + "\n") != std::string::npos) {
      return std::stoi(name);
    }
  }
  return -1;
}

std::unique_ptr<v1::Generation::Stub> ServeProcess::front() const {
  return v1::Generation::NewStub(channel(address()));
}

std::unique_ptr<v1::Engine::Stub> ServeProcess::worker() const {
  return v1::Engine::NewStub(channel(worker_address()));
}

v1::GenerateRequest endless_request() {
  v1::GenerateRequest request;
  request.set_text("hello");
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

}  // namespace ete
