#include <signal.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "clients/cli/chat/conversation.h"
#include "clients/cli/chat/line_reader.h"
#include "clients/cli/chat/settings.h"
#include "clients/cli/chat/turn.h"
#include "clients/cli/command.h"
#include "clients/cli/output.h"
#include "clients/cli/process.h"
#include "clients/cli/run_options.h"
#include "clients/cli/server_client.h"
#include "clients/options/command_line.h"
#include "clients/options/engine_flags.h"
#include "engine/base/error.h"

namespace ete::cli {
namespace {

constexpr const char* kName = "ete chat";
constexpr int kMaxTokens = 1024;
constexpr int kSignalExitBase = 128;
constexpr std::string_view kBlock = "\"\"\"";
constexpr const char* kPrompt = "> ";
constexpr const char* kMorePrompt = ". ";
constexpr const char* kDim = "\033[2m";
constexpr const char* kPlain = "\033[0m";

struct ChatOptions : GenerationOptions {
  std::string system;
  std::string load;
};

// Ends the chat from wherever it is.
struct Leave {
  int exit_code;
};

// What was being typed is not to be taken.
struct Abandon {};

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

bool is_blank(std::string_view text) { return trimmed(text).empty(); }

class Chat {
 public:
  Chat(const ChatHost& host, LineReader& lines, bool interactive, const ChatOptions& options)
      : host_(host), lines_(lines), interactive_(interactive), replies_(host) {
    settings_ = {options.sampling, options.stopping, interactive};
    if (!options.load.empty()) conversation_ = Conversation::load("--load", options.load);
    if (!options.system.empty()) conversation_.set_system(options.system);
  }

  // The exit code.
  int run() {
    check_template();
    if (interactive_) tell("/help lists the commands; Ctrl-C stops a reply, Ctrl-D leaves.\n");
    try {
      while (take_next()) {
      }
    } catch (const Leave& leave) {
      return leave.exit_code;
    }
    return 0;
  }

 private:
  struct Command {
    const char* name;
    const char* argument;  // how the help shows it
    const char* help;
    void (Chat::*run)(const std::string& argument);
  };
  static const std::array<Command, 9> kCommands;

  // Before anybody types: whether there is a template at all.
  void check_template() {
    v1::ChatMessage hello;
    hello.set_role("user");
    hello.set_content("Hello");
    CallWatcher watcher(host_.signal_fd, host_.servers);
    try {
      render_chat(*stub_of(host_), watcher, {hello}, host_.servers);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
    }
  }

  // False at the end of stdin.
  bool take_next() {
    try {
      const auto message = read_message();
      if (!message) return false;
      if (interactive_) {
        forgive([&] { take(*message); });
      } else {
        take(*message);
      }
    } catch (const Abandon&) {
    }
    return true;
  }

  // A person is told what was wrong, and goes on.
  void forgive(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      if (host_.servers != nullptr && host_.servers->failure()) throw;
      std::cerr << error_line(kName, error.what()) + "\n";
    }
  }

  void tell(const std::string& text) { print(host_.to_terminal ? without_controls(text) : text); }

  // The next line; none at the end. Throws Leave for signals that end the chat, Abandon for Ctrl-C.
  std::optional<std::string> read_line(const char* prompt) {
    while (true) {
      InputLine line = lines_.read(prompt);
      if (line.kind == InputLine::Kind::line) return std::move(line.text);
      if (line.kind == InputLine::Kind::end) return std::nullopt;
      if (line.signal == SIGCHLD) {
        check_servers();
      } else if (line.signal != SIGINT || !interactive_) {
        throw Leave{kSignalExitBase + line.signal};
      } else {
        throw Abandon{};
      }
    }
  }

  void check_servers() {
    if (host_.servers == nullptr) return;
    if (const auto failure = host_.servers->failure()) throw *failure;
  }

  // Lines that belong together: up to a closing """, or as long as each ends with a backslash.
  std::optional<std::string> read_message() {
    auto line = read_line(kPrompt);
    if (!line) return std::nullopt;
    if (trimmed(*line).starts_with(kBlock)) {
      std::string text(trimmed(*line).substr(kBlock.size()));
      return read_block(std::move(text));
    }
    std::string text;
    while (line && line->ends_with('\\')) {
      text += line->substr(0, line->size() - 1) + "\n";
      line = read_line(kMorePrompt);
    }
    return text + line.value_or("");
  }

  std::string read_block(std::string text) {
    while (!trimmed(text).ends_with(kBlock)) {
      const auto line = read_line(kMorePrompt);
      if (!line)
        throw Error(ErrorCode::invalid_argument, "stdin ended within \"\"\"; expected a closing \"\"\"");
      text += (text.empty() ? "" : "\n") + *line;
    }
    // Blank lines at its ends are how it was typed. The space keeps it from being a command.
    const std::string_view whole = trimmed(text);
    return " " + std::string(trimmed(whole.substr(0, whole.size() - kBlock.size())));
  }

  void take(const std::string& message) {
    if (is_blank(message)) return;
    if (!message.starts_with('/')) return say(std::string(trimmed(message)));
    if (message.starts_with("//")) return say(std::string(trimmed(message.substr(1))));
    const size_t space = message.find_first_of(" \t\n");
    const std::string name = message.substr(1, space == std::string::npos ? space : space - 1);
    const std::string argument(space == std::string::npos ? "" : trimmed(message.substr(space)));
    for (const Command& command : kCommands) {
      if (name == command.name) return (this->*command.run)(argument);
    }
    throw Error(ErrorCode::invalid_argument,
                "/" + name + " is no command; /help lists them, and //" + name + " says it to the model");
  }

  void say(const std::string& text) {
    const Conversation before = conversation_;
    conversation_.say(text);
    // What has no answer was not said, unless only the server was lost.
    try {
      if (!answer()) conversation_ = before;
    } catch (const Error& error) {
      if (!is_worth_a_retry(error)) conversation_ = before;
      throw;
    }
  }

  bool is_worth_a_retry(const Error& error) const {
    const bool own_server_ended = host_.servers != nullptr && host_.servers->failure();
    return error.code() == ErrorCode::unavailable && interactive_ && !own_server_ended;
  }

  // False: it was stopped before any of it came, and is not part of the conversation.
  bool answer() {
    Reply reply;
    try {
      reply = replies_.ask(conversation_, settings_);
    } catch (const Error& error) {
      if (!is_worth_a_retry(error)) throw;
      throw Error(error.code(), std::string(error.what()) +
                                    "; what you said is kept: /retry sends it again, and a message goes on "
                                    "from it");
    }
    if (reply.signal != 0 && (reply.signal != SIGINT || !interactive_)) {
      throw Leave{kSignalExitBase + reply.signal};
    }
    const bool came = reply.signal == 0 || !reply.generated.text.empty();
    if (came) conversation_.add("assistant", reply.generated.text);
    if (settings_.stats) {
      const bool dim = isatty(STDERR_FILENO) == 1;
      std::cerr << (dim ? kDim : "") + figures_of(reply) + (dim ? kPlain : "") + "\n";
    }
    return came;
  }

  static void expect_nothing(const std::string& name, const std::string& argument) {
    if (argument.empty()) return;
    throw Error(ErrorCode::invalid_argument,
                "/" + name + ": \"" + argument + "\" is not accepted; expected nothing");
  }

  void help(const std::string& argument);

  void start_anew(const std::string& argument) {
    expect_nothing("new", argument);
    conversation_.clear();
  }

  void change_system(const std::string& argument) {
    if (argument.empty()) {
      return tell(conversation_.system().empty() ? "(no system prompt)\n" : conversation_.system() + "\n");
    }
    conversation_.set_system(argument == "none" ? "" : argument);
  }

  void retry(const std::string& argument) {
    expect_nothing("retry", argument);
    const Conversation before = conversation_;
    conversation_.drop_reply();
    if (conversation_.turns().empty()) {
      throw Error(ErrorCode::invalid_argument, "/retry: nothing was said yet");
    }
    try {
      if (!answer()) conversation_ = before;
    } catch (const Error&) {
      conversation_ = before;
      throw;
    }
  }

  void show(const std::string& argument) {
    expect_nothing("show", argument);
    for (const v1::ChatMessage& message : conversation_.messages()) {
      tell(message.role() + ": " + message.content() + "\n");
    }
  }

  void save(const std::string& argument) {
    if (argument.empty())
      throw Error(ErrorCode::invalid_argument, "/save: expected the path of a file to write");
    conversation_.save(argument);
  }

  void load(const std::string& argument) {
    if (argument.empty())
      throw Error(ErrorCode::invalid_argument, "/load: expected the path of a file to read");
    conversation_ = Conversation::load("/load", argument);
    if (interactive_) tell(std::to_string(conversation_.turns().size()) + " turns\n");
  }

  void set(const std::string& argument) {
    if (argument.empty()) return tell(settings_text(settings_));
    const size_t space = argument.find_first_of(" \t");
    const std::string name = argument.substr(0, space);
    change_setting(settings_, name,
                   std::string(space == std::string::npos ? "" : trimmed(argument.substr(space))));
  }

  void quit(const std::string& argument) {
    expect_nothing("quit", argument);
    throw Leave{0};
  }

  const ChatHost host_;
  LineReader& lines_;
  const bool interactive_;
  Replies replies_;
  ChatSettings settings_;
  Conversation conversation_;
};

const std::array<Chat::Command, 9> Chat::kCommands = {{
    {"help", "", "this", &Chat::help},
    {"new", "", "a new conversation; the system prompt stays", &Chat::start_anew},
    {"system", "[TEXT]", "what the model is told first; none: nothing; without TEXT: shows it",
     &Chat::change_system},
    {"retry", "", "the last reply once more, or one to what got none", &Chat::retry},
    {"show", "", "what was said", &Chat::show},
    {"save", "FILE", "the conversation, as JSON", &Chat::save},
    {"load", "FILE", "goes on with one that was saved", &Chat::load},
    {"set", "[NAME VALUE]", "temperature, top-k, top-p, min-p, repeat-penalty, seed, max-tokens, stats",
     &Chat::set},
    {"quit", "", "leaves, as Ctrl-D does", &Chat::quit},
}};

void Chat::help(const std::string& argument) {
  expect_nothing("help", argument);
  std::string text;
  for (const Command& command : kCommands) {
    std::string usage = "/" + std::string(command.name) + " " + command.argument;
    usage.resize(20, ' ');
    text += usage + command.help + "\n";
  }
  tell(text +
       "\nA line that ends with \\ goes on with the next. \"\"\" begins and ends a text of several lines.\n"
       "// at the beginning says a line that begins with /. On a terminal, Alt-Enter makes a new line\n"
       "and pasted text stays one message.\n");
}

int chat(const CLI::App& command, const ChatOptions& options) {
  refuse_beside_address(command);
  const bool interactive = isatty(STDIN_FILENO) == 1;
  const int signal_fd = block_signals_into_fd({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD});
  const auto servers = start_servers(command, options);
  if (servers) {
    const int signal = servers->wait_until_ready(signal_fd);
    if (signal != 0) return kSignalExitBase + signal;
  }
  const auto lines = interactive ? make_terminal_reader(signal_fd) : make_plain_reader(signal_fd);
  const ChatHost host{front_of(servers.get(), options), servers.get(), signal_fd, isatty(STDOUT_FILENO) == 1};
  return Chat(host, *lines, interactive, options).run();
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "chat", "A conversation: on a terminal, or a line of stdin a message; /help inside lists commands");
  auto options = std::make_shared<ChatOptions>();
  add_server_flags(*command, *options);
  command->add_option("--system", options->system, "what the model is told first")->type_name("TEXT");
  command->add_option("--load", options->load, "goes on with a conversation that /save wrote")
      ->type_name("FILE");
  add_generation_flags(*command, *options, kMaxTokens);
  add_engine_flags(*command, options->engine);
  command->callback(
      [&action, options, command] { action = [options, command] { return chat(*command, *options); }; });
}

}  // namespace ete::cli
