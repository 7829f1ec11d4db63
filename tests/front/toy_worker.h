#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/front/toy_model.h"

namespace ete::front {

// A worker that serves ToyModel at a Unix socket: a stand-in for ete-worker, as far as the front can tell.
class ToyWorker {
 public:
  struct Options {
    std::string path;  // of the socket
    std::string name = "toy";
    std::string worker_id = "worker-1";
    int32_t vocab_size = ToyModel::kVocab;
    int64_t context = 64;
    std::chrono::milliseconds step_time{0};
    // Instead of step_time: blocks until the session with that prompt is to get its next reply, of number 0
    // on. What it returns is held while that reply is written.
    std::function<std::unique_lock<std::mutex>(const std::vector<int32_t>& prompt, int reply)> pace = {};
    std::chrono::milliseconds model_time{0};  // before it tells of its model
    bool wrong_digest = false;
    bool loading = false;
    std::string tokenizer_json;  // empty: every byte is a token
    std::string chat_template;   // beside such a one
    std::string plan_json = "{}";
    ToyModel model;
  };
  explicit ToyWorker(Options options);
  ~ToyWorker();

  int live_sessions() const;
  int steps() const;  // answered by all sessions so far, prompts included
  std::vector<std::string> request_ids() const;
  void set_loading(bool loading);
  // Sessions end with RESOURCE_EXHAUSTED, to be tried again after so many ms; 0: they do not.
  void refuse_sessions(int retry_ms);
  std::vector<int> priorities() const;

 private:
  class Service;
  struct Server;
  std::unique_ptr<Server> server_;
};

}  // namespace ete::front
