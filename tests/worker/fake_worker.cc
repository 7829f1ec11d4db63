#include <chrono>
#include <new>
#include <string>
#include <thread>

#include "services/worker/worker_process.h"
#include "tests/worker/fake_engine.h"

// ete-worker with a FakeEngine. --model says how it behaves: "fail:MESSAGE", "usage:MESSAGE", "slow" (loads
// until told to stop), "stuck" (loads for a minute, whatever it is told), "fatal" (the device fails soon),
// "held" (sessions open, and get no answer), "memory" (there is none to load it), "memory of a thread"
// (likewise, where nobody catches it), anything else works.
namespace {

using namespace ete;

Plan plan(const EngineOptions& options, ModelFiles* files) {
  if (options.model.rfind("fail:", 0) == 0) throw Error(ErrorCode::not_found, options.model.substr(5));
  if (options.model.rfind("usage:", 0) == 0)
    throw Error(ErrorCode::invalid_argument, options.model.substr(6));
  *files = FakeEngine::fake_files({});
  files->tokenizer_files.files.clear();  // a front then takes prompts of ids
  return FakeEngine::fake_plan({});
}

std::unique_ptr<Engine> load(const EngineOptions& options, const LoadProgress& progress) {
  progress(0.5, "half");
  while (options.model == "slow") {
    progress(0.5, "half");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (options.model == "memory") throw std::bad_alloc();
  if (options.model == "memory of a thread") std::thread([] { throw std::bad_alloc(); }).join();
  if (options.model == "stuck") std::this_thread::sleep_for(std::chrono::minutes(1));
  auto engine = std::make_unique<FakeEngine>();
  if (options.model == "held") engine->hold(true);
  if (options.model == "fatal") engine->fail_for_good(Error(ErrorCode::internal, "cuda:0 does not answer"));
  return engine;
}

}  // namespace

int main(int argc, char** argv) { return ete::worker::run_worker(argc, argv, {plan, load}); }
