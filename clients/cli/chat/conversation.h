#pragma once

#include <string>
#include <vector>

#include "ete/v1/generation.pb.h"

namespace ete::cli {

// What was said: an optional system prompt, then turns.
class Conversation {
 public:
  // system; empty: none.
  explicit Conversation(std::string system = "") : system_(std::move(system)) {}

  const std::string& system() const { return system_; }
  void set_system(std::string text) { system_ = std::move(text); }
  const std::vector<v1::ChatMessage>& turns() const { return turns_; }

  void add(const std::string& role, const std::string& content);
  // A turn of the user, which goes on with one that has no answer: templates take turns that alternate. Said
  // again, it is the same.
  void say(const std::string& text);
  // Takes back the last turn when it is the assistant's.
  void drop_reply();
  void clear() { turns_.clear(); }

  // The system prompt, if any, then the turns.
  std::vector<v1::ChatMessage> messages() const;

  // {"messages": [{"role", "content"}]}, as OpenAI's API takes them. The file is replaced as a whole. Throws
  // Error naming the file.
  void save(const std::string& path) const;
  // Throws Error naming what asked for it ("--load"), the file and the field: it cannot be read, is no such
  // document, or larger than 64 MiB.
  static Conversation load(const std::string& flag, const std::string& path);

 private:
  std::string system_;
  std::vector<v1::ChatMessage> turns_;
};

}  // namespace ete::cli
