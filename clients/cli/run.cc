#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "clients/cli/arguments.h"
#include "clients/cli/command.h"
#include "clients/cli/generate_call.h"
#include "clients/cli/local_servers.h"
#include "clients/cli/output.h"
#include "clients/cli/prompt_bar.h"
#include "clients/cli/run_options.h"
#include "clients/cli/server_client.h"
#include "clients/cli/session_file.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::chrono::seconds kPlanLimit{5};

Json document(const Generated& generated, const std::string& plan_json) {
  const v1::GenerationTimings& timings = generated.finish.timings();
  return {{"prompt_ids", generated.prompt.prompt_ids()},
          {"ids", generated.ids},
          {"text", generated.text},
          {"finish_reason", name_of(generated.finish.reason())},
          {"timings",
           {{"queued_ms", timings.queued_ms()},
            {"prefill_ms", timings.prefill_ms()},
            {"decode_ms", timings.decode_ms()},
            {"prefill_tokens_per_second", timings.prefill_tokens_per_second()},
            {"decode_tokens_per_second", timings.decode_tokens_per_second()},
            {"full_rows_fetched", timings.full_rows_fetched()},
            {"drafted_tokens", timings.drafted_tokens()},
            {"accepted_draft_tokens", timings.accepted_draft_tokens()},
            {"reused_tokens", generated.finish.reused_tokens()}}},
          {"plan", Json::parse(plan_json)}};
}

std::string plan_of(v1::Generation::Stub& stub, CallWatcher& watcher) {
  CallWatcher::Call call(watcher);
  call.context.set_deadline(std::chrono::system_clock::now() + kPlanLimit);
  v1::GetModelInfoReply model;
  const grpc::Status status = stub.GetModel(&call.context, {}, &model);
  if (!status.ok()) throw Error(ErrorCode::unavailable, "the server's plan: " + describe(status));
  return model.plan_json();
}

// What the plan says about flags that were given.
void tell_notes(const std::string& plan_json) {
  const Json plan = Json::parse(plan_json);
  for (const Json& note : plan.value("notes", Json::array())) warn("ete run", note.get<std::string>());
}

// Before anything is generated that could not be kept.
void check_keeps_sessions(const std::string& plan_json, const std::string& path) {
  const Json plan = Json::parse(plan_json);
  if (plan.value("prefix_cache_bytes", uint64_t{1}) > 0) return;
  throw Error(ErrorCode::failed_precondition,
              "--session " + path +
                  ": the server caches nothing (--prefix-cache 0, or no memory was left for it), so no "
                  "conversation can be kept; accepted there: --prefix-cache auto, or a size that fits");
}

// The request goes on from what the file holds, when there is one.
void continue_session(v1::Generation::Stub& stub, CallWatcher& watcher, const std::string& path,
                      v1::GenerateRequest& request) {
  std::optional<v1::RestoreReply> restored;
  {
    CallWatcher::Call call(watcher);
    restored = restore_session(stub, call.context, path);
  }
  if (!restored) return;
  v1::TokenIds prompt;
  *prompt.mutable_ids() = restored->ids();
  if (request.has_text()) {
    CallWatcher::Call call(watcher);
    v1::TokenizeRequest tokenize;
    tokenize.set_text(request.text());
    tokenize.set_add_special(false);
    v1::TokenizeReply tokenized;
    const grpc::Status status = stub.Tokenize(&call.context, tokenize, &tokenized);
    if (!status.ok()) throw Error(ErrorCode::unavailable, describe(status));
    prompt.mutable_ids()->MergeFrom(tokenized.ids());
  } else {
    prompt.mutable_ids()->MergeFrom(request.tokens().ids());
  }
  *request.mutable_tokens() = std::move(prompt);
  request.set_cache_salt(restored->cache_salt());
}

void keep_session(v1::Generation::Stub& stub, CallWatcher& watcher, const std::string& path,
                  const v1::GenerateRequest& request, const Generated& generated) {
  v1::SnapshotRequest snapshot;
  *snapshot.mutable_ids() = generated.prompt.prompt_ids();
  snapshot.mutable_ids()->Add(generated.ids.begin(), generated.ids.end());
  snapshot.set_cache_salt(request.cache_salt());
  CallWatcher::Call call(watcher);
  save_session(stub, call.context, path, snapshot);
}

// The prompt becomes a conversation that begins with it.
void set_user_turn(v1::Generation::Stub& stub, CallWatcher& watcher, v1::GenerateRequest& request,
                   LocalServers* servers) {
  v1::ChatMessage turn;
  turn.set_role("user");
  turn.set_content(request.text());
  set_chat_prompt(request, render_chat(stub, watcher, {turn}, servers));
}

int run(const CLI::App& command, const RunOptions& options) {
  v1::GenerateRequest request = make_request(command, options);
  if (!options.session.empty()) check_session_path(options.session);
  const int signal_fd = block_signals_into_fd({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD});
  const auto servers = start_servers(command, options);
  if (servers) {
    const int signal = servers->wait_until_ready(signal_fd);
    if (signal != 0) return kSignalExitBase + signal;
  }
  const auto stub = v1::Generation::NewStub(connect(front_of(servers.get(), options)));
  PromptBar bar(request);
  CallWatcher watcher(signal_fd, servers.get());
  const auto write = [&](const std::string& text) { print(text, watcher.cancelled_fd()); };
  StreamEvents events;
  events.on_progress = [&](const v1::PromptProgress& progress) { bar.draw(progress); };
  events.on_text = [&](const std::string& text) {
    bar.clear();
    if (!options.json) write(text);
  };
  Generated generated;
  grpc::Status status;
  std::optional<Error> failure;
  try {
    if (!engine_arguments(command).empty()) tell_notes(plan_of(*stub, watcher));
    const bool keep = !options.session.empty();
    if (keep) check_keeps_sessions(plan_of(*stub, watcher), options.session);
    if (keep) continue_session(*stub, watcher, options.session, request);
    if (options.chat) set_user_turn(*stub, watcher, request, servers.get());
    status = read_stream(*stub, watcher, request, events, generated);
    bar.clear();
    if (status.ok() && keep) keep_session(*stub, watcher, options.session, request, generated);
    if (status.ok())
      write(options.json ? to_text(document(generated, plan_of(*stub, watcher))) + "\n" : "\n");
  } catch (const Error& error) {
    failure = error;
  }
  watcher.stop();
  if (watcher.signal() != 0) return kSignalExitBase + watcher.signal();
  if (watcher.stdout_closed()) throw Error(ErrorCode::unavailable, "cannot write to stdout: Broken pipe");
  if (failure) throw *failure;
  if (status.ok()) {
    if (!options.json && generated.text.empty() && !generated.ids.empty()) {
      warn("ete run", "no text came of " + std::to_string(generated.ids.size()) + " ids; --json prints them");
    }
    return 0;
  }
  if (!options.json && !generated.text.empty()) print("\n");
  throw reason_of(status, servers.get());
}

}  // namespace

void add_run_command(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("run", "Continue a text: starts worker and front, streams to stdout");
  auto options = std::make_shared<RunOptions>();
  add_run_flags(*command, *options);
  command->callback(
      [&action, options, command] { action = [options, command] { return run(*command, *options); }; });
}

}  // namespace ete::cli
