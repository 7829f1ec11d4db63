// toy_worker SOCKET NAME: a ToyWorker as a process of its own, so that a test can kill it.
#include <unistd.h>

#include <iostream>

#include "tests/front/toy_worker.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  ete::front::ToyWorker::Options options;
  options.path = argv[1];
  options.name = argv[2];
  options.worker_id = std::string(argv[2]) + "-" + std::to_string(getpid());
  options.step_time = std::chrono::milliseconds(20);
  const ete::front::ToyWorker worker(std::move(options));
  std::cout << "listening" << std::endl;
  pause();
  return 0;
}
