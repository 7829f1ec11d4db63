// toy_worker SOCKET NAME [CONTEXT STEP_MS CHAT_TEMPLATE_FILE]: a ToyWorker as a process of its own, so that a
// test can kill it.
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "tests/front/toy_worker.h"

int main(int argc, char** argv) {
  if (argc != 3 && argc != 6) return 2;
  ete::front::ToyWorker::Options options;
  options.path = argv[1];
  options.name = argv[2];
  options.worker_id = std::string(argv[2]) + "-" + std::to_string(getpid());
  options.step_time = std::chrono::milliseconds(20);
  if (argc == 6) {
    options.context = std::stoll(argv[3]);
    options.step_time = std::chrono::milliseconds(std::stoll(argv[4]));
    std::ifstream file(argv[5]);
    options.chat_template = {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  const ete::front::ToyWorker worker(std::move(options));
  std::cout << "listening" << std::endl;
  pause();
  return 0;
}
