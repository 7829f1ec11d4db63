#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "clients/cli/arguments.h"
#include "clients/cli/bench/ceilings.h"
#include "clients/cli/bench/figures.h"
#include "clients/cli/bench/plot.h"
#include "clients/cli/bench/proof.h"
#include "clients/cli/bench/workload.h"
#include "clients/cli/command.h"
#include "clients/cli/default_model.h"
#include "clients/cli/output.h"
#include "clients/cli/progress_bar.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "engine/base/error.h"
#include "engine/runtime/engine_impl.h"

namespace ete::cli {
namespace {

constexpr int64_t kMostSessions = 1024;

struct BenchOptions {
  EngineOptions engine;
  std::vector<int64_t> sessions = {1, 4, 16};
  std::vector<int64_t> prompts = {512};
  Workload workload{.depth = 64, .steps = 32, .repeats = 3};
  bool json = false;
  std::string plot;
};

void add_list(CLI::App& app, const std::string& flag, int64_t highest, const std::string& description,
              std::vector<int64_t>& list) {
  app.add_option_function<std::string>(
         flag,
         [flag, highest, &list](const std::string& text) {
           list.clear();
           for (size_t begin = 0; begin <= text.size();) {
             const size_t comma = std::min(text.find(',', begin), text.size());
             const auto number =
                 parse_integer(std::string_view(text).substr(begin, comma - begin), 1, highest);
             if (!number) {
               reject_flag(
                   flag, text,
                   "whole numbers from 1 to " + std::to_string(highest) + ", separated by commas, as 1,4,16");
             }
             list.push_back(*number);
             begin = comma + 1;
           }
         },
         description)
      ->type_name("N,N");
}

void check_lengths(const BenchOptions& options, const Plan& plan) {
  const Workload& workload = options.workload;
  const std::string held = std::to_string(plan.context) + ", the positions that a session holds";
  const int64_t decode = positions_of(workload);
  if (decode > plan.context) {
    throw Error(ErrorCode::invalid_argument,
                "--depth " + std::to_string(workload.depth) + ", --steps " + std::to_string(workload.steps) +
                    ", --repeats " + std::to_string(workload.repeats) + ": a session reaches " +
                    std::to_string(decode) + " positions; accepted: at most " + held);
  }
  for (const int64_t length : options.prompts) {
    if (length <= plan.context) continue;
    throw Error(ErrorCode::invalid_argument,
                "--prompt: " + std::to_string(length) + " ids; accepted: 1 to " + held);
  }
}

// The engine knows numbers of sessions as --max-sessions, of which only --sessions may have been given.
Plan plan_for(const BenchOptions& options, bool raised, ModelFiles* model) {
  try {
    return Engine::plan_only(options.engine, model);
  } catch (const Error& error) {
    const std::string what = error.what();
    if (!raised || what.find("--max-sessions") == what.npos) throw;
    throw Error(error.code(), "--sessions " + std::to_string(options.engine.max_sessions) +
                                  " (as --max-sessions): " + what);
  }
}

[[noreturn]] void fail_plot(const std::string& path) {
  throw Error(ErrorCode::unavailable, "--plot " + path + ": " + std::strerror(errno));
}

// Before minutes are spent on what is to be written there.
void check_writable(const std::string& path) {
  if (!std::ofstream(path, std::ios::app)) fail_plot(path);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) fail_plot(path);
}

class Bench {
 public:
  Bench(const BenchOptions& options, Report& report, Engine& engine, Timeline& timeline,
        const PlainRows& plain)
      : options_(options), report_(report), engine_(engine), timeline_(timeline), plain_(plain) {}

  void run() {
    for (const int64_t length : options_.prompts) prefill(length);
    for (const int64_t sessions : options_.sessions) decode(static_cast<int>(sessions));
  }
  // Of the first number of sessions.
  const std::vector<Timeline::Span>& spans() const { return spans_; }

 private:
  Figure checked(const std::string& name, int sessions, const std::string& unit) {
    Figure figure;
    figure.name = name;
    figure.sessions = sessions;
    figure.unit = unit;
    figure.error = error_against(plain_, engine_, sessions);
    figure.tolerance = tolerance_of(report_.plan, options_.engine.kv_type);
    return figure;
  }

  void prefill(int64_t length) {
    Figure figure = checked("prefill " + std::to_string(length), 1, "tokens/s");
    const Floor floor = prefill_floor(report_.plan, report_.ceilings, length);
    const Samples seconds = measure_first_token(engine_, length, options_.workload.repeats);
    Figure first = figure;
    first.name = "first token " + std::to_string(length);
    first.unit = "ms";
    for (const double value : seconds.values) {
      figure.samples.values.push_back(static_cast<double>(length) / value);
      first.samples.values.push_back(1e3 * value);
    }
    figure.ceiling = static_cast<double>(length) / floor.seconds;
    first.ceiling = 1e3 * floor.seconds;
    figure.ceiling_by = first.ceiling_by = floor.by;
    figure.ratio = first.ratio = floor.seconds / seconds.median();
    add(std::move(figure));
    add(std::move(first));
  }

  void decode(int sessions) {
    Figure figure = checked("decode", sessions, "tokens/s");
    const Floor floor = decode_floor(report_.plan, report_.ceilings, sessions, options_.workload.depth);
    const DecodeTimes times = measure_decode(engine_, sessions, options_.workload);
    figure.samples = times.tokens_per_second;
    figure.p50_ms = times.p50_ms;
    figure.p99_ms = times.p99_ms;
    figure.ceiling = sessions / floor.seconds;
    figure.ceiling_by = floor.by;
    figure.ratio = times.tokens_per_second.median() / figure.ceiling;
    const auto spans = trace_decode(engine_, timeline_, sessions, options_.workload.depth);
    if (report_.plan.streamed_bytes_per_pass > 0) {
      figure.link_idle = idle_share(spans, Timeline::Lane::copy);
    }
    if (spans_.empty()) spans_ = spans;
    add(std::move(figure));
  }

  void add(Figure figure) {
    if (!options_.json) print(line_text(figure));
    report_.figures.push_back(std::move(figure));
  }

  const BenchOptions& options_;
  Report& report_;
  Engine& engine_;
  Timeline& timeline_;
  const PlainRows& plain_;
  std::vector<Timeline::Span> spans_;
};

std::unique_ptr<Engine> load_with_progress(const EngineOptions& options, const EngineTuning& tuning) {
  ProgressBar bar;
  const auto draw = [&bar](double fraction, const std::string& what) { bar.draw(fraction, what); };
  return load_engine(options, draw, tuning);
}

int bench(const CLI::App& command, BenchOptions options) {
  const std::string extension = std::filesystem::path(options.plot).extension();
  if (!extension.empty() && extension != ".svg") {
    throw UsageError("--plot: \"" + options.plot + "\" is not accepted: the picture is SVG, in a file *.svg");
  }
  options.engine.model = model_or_default(command, options.engine.model);
  const int64_t most = *std::max_element(options.sessions.begin(), options.sessions.end());
  if (options.engine.prefix_cache > 0) {
    throw Error(ErrorCode::invalid_argument,
                "--prefix-cache: " + std::to_string(options.engine.prefix_cache) +
                    " bytes; accepted: 0, auto (as 0): bench computes every position that it measures");
  }
  options.engine.prefix_cache = 0;
  const bool raised = most > options.engine.max_sessions;
  if (raised) options.engine.max_sessions = static_cast<int>(most);
  ModelFiles model;
  Report report;
  report.model = options.engine.model;
  report.plan = plan_for(options, raised, &model);
  check_lengths(options, report.plan);
  if (!options.plot.empty()) check_writable(options.plot);
  const int64_t vocab_size = model.config.vocab_size;
  report.ceilings = measure_ceilings(options.engine, report.plan, model.config);
  model = {};
  const PlainRows plain = plain_rows(options.engine, report.plan, vocab_size);
  Timeline timeline;
  EngineTuning tuning;
  tuning.timeline = &timeline;
  const auto engine = load_with_progress(options.engine, tuning);
  report.plan = engine->plan();
  if (!options.json) print(header_text(report));
  Bench bench(options, report, *engine, timeline, plain);
  bench.run();
  if (!options.plot.empty()) write_file(options.plot, plot_svg(report, bench.spans()));
  if (options.json) print(to_text(to_json(report)) + "\n");
  const auto withheld = [](const Figure& figure) { return figure.withheld(); };
  if (std::none_of(report.figures.begin(), report.figures.end(), withheld)) return 0;
  throw Error(ErrorCode::internal,
              "figures are withheld: rows differ from the plain path by more than the "
              "tolerance that is printed");
}

}  // namespace

void add_bench_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "bench", "What the machine could do at most, then what the engine does, each figure with its ratio");
  auto options = std::make_shared<BenchOptions>();
  add_optional_model_flag(*command, options->engine.model);
  add_list(*command, "--sessions", kMostSessions, "numbers of sessions that decode together [1,4,16]",
           options->sessions);
  add_list(*command, "--prompt", INT32_MAX, "lengths of a lone prompt [512]", options->prompts);
  add_count_flag(*command, "--depth", "positions that a session holds when decoding starts [64]", INT32_MAX,
                 options->workload.depth);
  add_count_flag(*command, "--steps", "decode steps of each session, a repetition [32]", INT32_MAX,
                 options->workload.steps);
  add_count_flag(*command, "--repeats", "repetitions, for the spread [3]", INT32_MAX,
                 options->workload.repeats);
  command->add_flag("--json", options->json, "one JSON document on stdout");
  add_file_flag(*command, "--plot", "FILE.svg", "a picture of the figures and of what link and compute did",
                options->plot);
  add_engine_flags(*command, options->engine);
  command->callback(
      [&action, options, command] { action = [options, command] { return bench(*command, *options); }; });
}

}  // namespace ete::cli
