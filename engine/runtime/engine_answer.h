#pragma once

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace ete {

// Waits for what an engine gives to a callback (value, error or null) on its thread, and throws the error on
// the thread that waits. It crosses as code and text: exceptions and their texts are counted by the standard
// library, which ThreadSanitizer does not see.
template <typename Value>
class EngineAnswer {
 public:
  // May outlive this object.
  auto callback() {
    return [told = told_](Value value, const Error* error) {
      Told answer{.value = std::move(value), .failure = std::nullopt};
      if (error != nullptr) answer.failure = {error->code(), error->what()};
      told->set_value(std::move(answer));
    };
  }
  // Once.
  Value wait() {
    Told told = told_->get_future().get();
    if (told.failure) throw Error(told.failure->first, told.failure->second);
    return std::move(told.value);
  }

 private:
  struct Told {
    Value value;
    std::optional<std::pair<ErrorCode, std::string>> failure;
  };
  std::shared_ptr<std::promise<Told>> told_ = std::make_shared<std::promise<Told>>();
};

}  // namespace ete
