#include "clients/cli/server_commands.h"

#include <unistd.h>

#include <fstream>

namespace ete::cli {
namespace {

std::string exit_with_us() { return "--exit-with-parent=" + std::to_string(getpid()); }

}  // namespace

ChildCommand worker_command(const WorkerSettings& settings) {
  ChildCommand command;
  command.program = beside_executable("ete-worker");
  command.log_file = settings.log_file;
  command.arguments = {"--model=" + settings.model, "--listen=" + settings.listen, exit_with_us()};
  for (const std::string& argument : settings.engine_arguments) command.arguments.push_back(argument);
  for (const std::string& argument : settings.service_arguments) command.arguments.push_back(argument);
  return command;
}

ChildCommand front_command(const FrontSettings& settings) {
  ChildCommand command;
  command.program = beside_executable("ete-front");
  command.log_file = settings.log_file;
  command.arguments = {"--worker=" + settings.worker, "--listen=" + settings.listen, exit_with_us()};
  for (const std::string& argument : settings.service_arguments) command.arguments.push_back(argument);
  return command;
}

std::string last_line(const std::string& log_file) {
  std::ifstream log(log_file);
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

}  // namespace ete::cli
