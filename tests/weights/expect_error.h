#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace ete::testing {

// The message of the Error that `action` throws; a test failure and an empty string when it throws none.
template <typename Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const Error& e) {
    return e.what();
  }
  ADD_FAILURE() << "no Error was thrown";
  return "";
}

}  // namespace ete::testing
