#pragma once

namespace ete::front {

// All of ete-front: listens, keeps to its worker, serves until SIGTERM or SIGINT, drains. Returns the exit
// code: 0 after a signal or --help, 2 when the flags are wrong, 1 otherwise; failures are told in one line on
// stderr. Health is SERVING while the worker's model is known and the worker is there.
int run_front(int argc, const char* const* argv);

}  // namespace ete::front
