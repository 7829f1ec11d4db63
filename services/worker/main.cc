#include "engine/runtime/engine.h"
#include "services/worker/worker_process.h"

int main(int argc, char** argv) {
  return ete::worker::run_worker(argc, argv, {&ete::Engine::plan_only, &ete::Engine::load});
}
