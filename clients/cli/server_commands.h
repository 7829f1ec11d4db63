#pragma once

#include <string>
#include <vector>

#include "clients/cli/process.h"

namespace ete::cli {

// How the two servers are started. Both die with this process.
struct WorkerSettings {
  std::string model;
  std::vector<std::string> engine_arguments;  // as engine_arguments() gives them
  std::string listen;
  std::vector<std::string> service_arguments;  // --log-level=..., --drain-grace=...
  std::string log_file;                        // empty: our stderr
};
ChildCommand worker_command(const WorkerSettings& settings);

struct FrontSettings {
  std::string worker;  // its address
  std::string listen;
  std::vector<std::string> service_arguments;
  std::string log_file;
};
ChildCommand front_command(const FrontSettings& settings);

// The last line of a log, without its newline; empty when there is none.
std::string last_line(const std::string& log_file);

}  // namespace ete::cli
