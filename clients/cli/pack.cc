#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/output.h"
#include "clients/cli/process.h"
#include "clients/cli/progress_bar.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "engine/base/error.h"
#include "engine/models/pack_model.h"

namespace ete::cli {
namespace {

struct PackFlags {
  PackOptions options;
  int64_t threads = 0;
  bool json = false;
};

std::string text_of(const PackReport& report, const std::string& out) {
  std::string text;
  size_t kept = 0;
  for (const PackedTensor& tensor : report.tensors) {
    kept += tensor.is_quantised ? 0 : 1;
    if (!tensor.is_quantised) continue;
    char figures[96];
    std::snprintf(figures, sizeof figures, "  relative rms %.3e  max %.3e\n", tensor.relative_rms,
                  tensor.max_abs);
    text += tensor.name + figures;
  }
  return text + std::to_string(report.tensors.size() - kept) + " tensors quantised, " + std::to_string(kept) +
         " kept as they are, " + std::to_string(report.bytes) + " bytes in " + out + "\n";
}

std::string json_of(const PackReport& report, const std::string& out) {
  auto tensors = nlohmann::ordered_json::array();
  for (const PackedTensor& tensor : report.tensors) {
    nlohmann::ordered_json entry = {
        {"name", tensor.name}, {"shape", tensor.shape}, {"quantised", tensor.is_quantised}};
    if (tensor.is_quantised) {
      entry["relative_rms"] = tensor.relative_rms;
      entry["max_abs"] = tensor.max_abs;
    }
    tensors.push_back(std::move(entry));
  }
  return to_text({{"out", out}, {"bytes", report.bytes}, {"tensors", tensors}}) + "\n";
}

// What a progress callback throws, so that a signal leaves no half-made directory.
struct Stopped {
  int signal;
};

int pack(const PackFlags& flags) try {
  const int signals = block_signals_into_fd({SIGINT, SIGTERM});  // before there are threads
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  ThreadPool pool(flags.threads > 0 ? static_cast<int>(flags.threads) : cores);
  PackReport report;
  {
    ProgressBar bar;
    report = pack_model(flags.options, pool, [&](double fraction, const std::string& tensor) {
      if (const int signal = next_signal(signals, std::chrono::milliseconds(0))) throw Stopped{signal};
      bar.draw(fraction, tensor);
    });
  }
  close(signals);
  print(flags.json ? json_of(report, flags.options.out) : text_of(report, flags.options.out));
  return 0;
} catch (const Stopped& stopped) {
  return kSignalExitBase + stopped.signal;
}

}  // namespace

void add_pack_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "pack", "Quantises a model into a directory of compressed-tensors weights that other tools can read");
  auto flags = std::make_shared<PackFlags>();
  add_model_flag(*command, flags->options.model);
  const auto set_format = [flags](const std::string& text) {
    if (text != "int8" && text != "int4") reject_flag("--format", text, "int8 or int4");
    flags->options.format = text == "int8" ? PackFormat::int8 : PackFormat::int4;
  };
  command
      ->add_option_function<std::string>("--format", set_format,
                                         "int8 (a scale a row) or int4 (a scale for 128 columns)")
      ->type_name("int8|int4")
      ->required();
  add_file_flag(*command, "--out", "DIRECTORY", "the directory to make", flags->options.out)->required();
  command->add_flag("--keep-vocab", flags->options.keep_vocab,
                    "embedding and lm_head stay as they are, as Hugging Face transformers needs it");
  add_count_flag(*command, "--threads", "host threads; the machine's cores without it", 1024, flags->threads);
  command->add_option("--accept-unknown", flags->options.accept_unknown,
                      "a key or tensor that is not known and accepted all the same");
  command->add_flag("--json", flags->json, "one JSON document on stdout");
  command->callback([&action, flags] { action = [flags] { return pack(*flags); }; });
}

}  // namespace ete::cli
