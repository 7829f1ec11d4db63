#pragma once

#include <memory>
#include <string>

#include "clients/cli/chat/conversation.h"
#include "clients/cli/chat/settings.h"
#include "clients/cli/generate_call.h"
#include "clients/cli/local_servers.h"
#include "clients/cli/server_client.h"
#include "ete/v1/generation.grpc.pb.h"

namespace ete::cli {

// What a reply is asked of.
struct ChatHost {
  ServerAccess front;
  LocalServers* servers;  // null: they are not ours
  int signal_fd;
  bool to_terminal;  // stdout is one: control characters of a reply are shown instead of sent
};

// Connects anew, for each turn: gRPC does not look at an idle connection, so that a front which was gone for
// a while would seem to be gone for long after.
std::unique_ptr<v1::Generation::Stub> stub_of(const ChatHost& host);

struct Reply {
  Generated generated;
  int signal = 0;  // that stopped it; 0: it ended by itself
};

// Asks for replies and streams them to stdout. Not thread-safe.
class Replies {
 public:
  explicit Replies(const ChatHost& host) : host_(host) {}

  // The text of the conversation is rendered, the reply printed as it comes, a newline behind it. Throws
  // Error when it fails; what was printed stands.
  Reply ask(const Conversation& conversation, const ChatSettings& settings);

 private:
  const ChatHost host_;
};

// "[12 tokens, 25.1 tokens/s; prompt 40 tokens, 28 reused, 300 tokens/s]"
std::string figures_of(const Reply& reply);

// Text for a terminal: what would be a command to it becomes U+FFFD. Newlines and tabs stay.
std::string without_controls(const std::string& text);

}  // namespace ete::cli
