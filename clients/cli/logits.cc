#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/output.h"
#include "clients/cli/safetensors_writer.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "engine/base/error.h"
#include "engine/runtime/blocking_session.h"
#include "engine/runtime/engine.h"

namespace ete::cli {
namespace {

// Rows are asked for in pieces of this many bytes of logits, so that memory does not grow with the prompt. A
// piece is a multiple of 64 positions, as a planned chunk is.
constexpr int64_t kPieceBytes = 256 << 20;
constexpr int64_t kPieceMultiple = 64;

struct LogitsOptions {
  EngineOptions engine;
  std::vector<int32_t> tokens;
  std::string out;
  bool last = false;
  bool one_by_one = false;
  int64_t greedy = 0;
};

void check_tokens(const LogitsOptions& options, int64_t vocab_size, int64_t context) {
  for (const int32_t id : options.tokens) {
    if (id < vocab_size) continue;
    throw Error(ErrorCode::invalid_argument, "--tokens: " + std::to_string(id) +
                                                 " is no id of this model, whose ids are 0 to " +
                                                 std::to_string(vocab_size - 1));
  }
  const int64_t count = static_cast<int64_t>(options.tokens.size());
  if (count > context) {
    throw Error(ErrorCode::invalid_argument, "--tokens: " + std::to_string(count) +
                                                 " ids, but a session holds " + std::to_string(context) +
                                                 " positions");
  }
  // The last greedy id is chosen, not fed.
  const int64_t room = context - count + 1;
  if (options.greedy > room) {
    throw Error(ErrorCode::invalid_argument, "--greedy: " + std::to_string(options.greedy) +
                                                 " ids do not fit: after the prompt there is room for " +
                                                 std::to_string(room));
  }
}

std::vector<OutputTensor> tensors_of(const LogitsOptions& options, int64_t vocab_size) {
  const int64_t rows = options.last ? 1 : static_cast<int64_t>(options.tokens.size());
  std::vector<OutputTensor> tensors = {{"logits", "F32", {rows, vocab_size}}};
  if (options.greedy > 0) tensors.push_back({"greedy_ids", "I32", {options.greedy}});
  return tensors;
}

// A session that takes the prompt piece by piece.
class PromptFeed {
 public:
  PromptFeed(Engine& engine, SafetensorsWriter& writer, const LogitsOptions& options)
      : engine_(engine), writer_(writer), options_(options) {}

  // Writes the prompt's rows. Returns the best id after it.
  int32_t feed(int64_t vocab_size) {
    const int64_t count = static_cast<int64_t>(options_.tokens.size());
    const int64_t by_bytes = kPieceBytes / (vocab_size * static_cast<int64_t>(sizeof(float)));
    const int64_t whole = std::max(by_bytes / kPieceMultiple, int64_t{1}) * kPieceMultiple;
    const int64_t piece = options_.one_by_one ? 1 : options_.last ? count : whole;
    if (options_.one_by_one) session_ = std::make_unique<BlockingSession>(engine_, OpenRequest{});
    for (int64_t begin = 0; begin < count;) {
      int64_t end = std::min(begin + piece, count);
      // A step of one id would take the decode kernels.
      if (!options_.one_by_one && end + 1 == count) end = count;
      feed_piece(begin, end);
      begin = end;
    }
    return best_;
  }
  // It stands at the prompt's end once that was fed.
  BlockingSession& session() { return *session_; }

 private:
  void feed_piece(int64_t begin, int64_t end) {
    const bool at_end = end == static_cast<int64_t>(options_.tokens.size());
    const WantedRows rows = !options_.last ? WantedRows::all : at_end ? WantedRows::last : WantedRows::none;
    LogitsWanted wanted;
    wanted.top_k = 1;
    wanted.full_row = true;
    std::vector<int32_t> ids(options_.tokens.begin() + begin, options_.tokens.begin() + end);
    StepResult result;
    if (session_) {
      StepRequest request;
      request.position = begin;
      request.ids = std::move(ids);
      request.rows = rows;
      request.wanted = wanted;
      result = session_->step(std::move(request));
    } else {
      OpenRequest request;
      request.prompt_ids = std::move(ids);
      request.rows = rows;
      request.wanted = wanted;
      session_ = std::make_unique<BlockingSession>(engine_, std::move(request));
      result = session_->opened();
    }
    for (const LogitsRow& row : result.rows) writer_.write(std::span<const float>(row.full));
    if (at_end) best_ = result.rows.back().top_ids.front();
  }

  Engine& engine_;
  SafetensorsWriter& writer_;
  const LogitsOptions& options_;
  std::unique_ptr<BlockingSession> session_;
  int32_t best_ = -1;
};

// `first` is the best id after the prompt, which ends at `position`.
std::vector<int32_t> greedy_ids(BlockingSession& session, int32_t first, int64_t position, int64_t count) {
  std::vector<int32_t> ids = {first};
  while (static_cast<int64_t>(ids.size()) < count) {
    StepRequest request;
    request.position = position++;
    request.ids = {ids.back()};
    request.wanted.top_k = 1;
    ids.push_back(session.step(std::move(request)).rows.back().top_ids.front());
  }
  return ids;
}

int logits(const LogitsOptions& options) {
  // Everything that can be refused is, before weights are loaded.
  ModelFiles model;
  const Plan plan = Engine::plan_only(options.engine, &model);
  const int64_t vocab_size = model.config.vocab_size;
  check_tokens(options, vocab_size, plan.context);
  for (const std::string& note : plan.notes) warn("ete logits", note);
  SafetensorsWriter writer(options.out, tensors_of(options, vocab_size));
  const auto engine = Engine::load(options.engine);
  PromptFeed prompt(*engine, writer, options);
  const int32_t best = prompt.feed(vocab_size);
  if (options.greedy > 0) {
    const int64_t position = static_cast<int64_t>(options.tokens.size());
    writer.write(std::span<const int32_t>(greedy_ids(prompt.session(), best, position, options.greedy)));
  }
  writer.commit();
  return 0;
}

}  // namespace

void add_logits_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "logits", "Logits of a list of ids by the engine alone, as safetensors: logits F32 [T, vocab]");
  auto options = std::make_shared<LogitsOptions>();
  add_model_flag(*command, options->engine.model);
  add_tokens_flag(*command, "the ids", options->tokens)->required();
  add_file_flag(*command, "--out", "FILE.safetensors", "the file to write", options->out)->required();
  command->add_flag("--last", options->last, "only the last position: logits [1, vocab]");
  command->add_flag("--one-by-one", options->one_by_one, "feed the ids one by one through the decode path");
  command
      ->add_option_function<std::string>(
          "--greedy",
          [options](const std::string& text) {
            const auto count = parse_integer(text, 1, INT32_MAX);
            if (!count) reject_flag("--greedy", text, "a whole number, at least 1");
            options->greedy = *count;
          },
          "also continue with the best id N times: greedy_ids I32 [N]")
      ->type_name("N");
  add_engine_flags(*command, options->engine);
  command->callback([&action, options] { action = [options] { return logits(*options); }; });
}

}  // namespace ete::cli
