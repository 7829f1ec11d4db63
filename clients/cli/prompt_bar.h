#pragma once

#include <cstdint>
#include <optional>

#include "clients/cli/progress_bar.h"
#include "ete/v1/generation.pb.h"

namespace ete::cli {

// Draws how much of a long prompt is processed, and an estimate of the rest, on stderr where that is a
// terminal. Nothing is drawn of what a server does not tell, as older ones do not. Not thread-safe.
class PromptBar {
 public:
  // The request asks for what is to be drawn.
  explicit PromptBar(v1::GenerateRequest& request);

  void draw(const v1::PromptProgress& progress);
  // The line is gone when this returns.
  void clear() { bar_.reset(); }

 private:
  std::optional<ProgressBar> bar_;
  int64_t processed_ = 0;
};

}  // namespace ete::cli
