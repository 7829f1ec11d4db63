#pragma once

#include <string>

#include "engine/base/error.h"
#include "engine/device/device.h"

namespace ete {

// Why a test of this device must be skipped here; empty: it works.
inline std::string why_absent(const std::string& device) {
  try {
    make_device({.device = device, .threads = 1});
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

// "cuda:0" -> "cuda": part of a test's name.
inline std::string kind_of(const std::string& device) { return device.substr(0, device.find(':')); }

}  // namespace ete
