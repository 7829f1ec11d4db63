#include "clients/cli/prompt_bar.h"

#include <unistd.h>

#include <string>

namespace ete::cli {
namespace {

constexpr int64_t kLeastTokens = 128;  // fewer are done before anybody has read the line

}  // namespace

PromptBar::PromptBar(v1::GenerateRequest& request) {
  if (isatty(STDERR_FILENO) == 1) request.set_prompt_progress(true);
}

void PromptBar::draw(const v1::PromptProgress& progress) {
  const int64_t total = progress.prompt_tokens();
  // Another worker began anew: so does the estimate.
  if (progress.processed_tokens() < processed_) clear();
  processed_ = progress.processed_tokens();
  if (processed_ >= total) return clear();
  if (total - progress.reused_tokens() < kLeastTokens) return;
  if (!bar_) bar_.emplace();
  bar_->draw(static_cast<double>(processed_) / static_cast<double>(total),
             "of a prompt of " + std::to_string(total) + " tokens");
}

}  // namespace ete::cli
