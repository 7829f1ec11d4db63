#include <cstdio>
#include <nlohmann/json.hpp>

#include "engine/runtime/byte_text.h"
#include "engine/runtime/engine.h"

namespace ete {

std::string byte_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", value, kUnits[unit]);
  return text;
}

std::string Plan::to_json() const {
  nlohmann::ordered_json formats = nlohmann::ordered_json::object();
  for (const auto& [format, bytes] : bytes_by_format) formats[format] = bytes;
  const nlohmann::ordered_json plan = {
      {"device_name", device_name},
      {"kernels", kernels},
      {"layers", layers},
      {"resident_layers", resident_layers},
      {"slots", slots},
      {"context", context},
      {"chunk", chunk},
      {"max_sessions", max_sessions},
      {"max_queued", max_queued},
      {"max_queued_tokens", max_queued_tokens},
      {"threads", threads},
      {"kv_placement", kv_placement},
      {"kv_type", kv_type},
      {"vocab_placement", vocab_placement},
      {"home_bytes", home_bytes},
      {"resident_bytes", resident_bytes},
      {"host_share", host_share},
      {"streamed_bytes_per_pass", streamed_bytes_per_pass},
      {"prompt_streamed_bytes_per_pass", prompt_streamed_bytes_per_pass},
      {"host_bytes_per_pass", host_bytes_per_pass},
      {"lm_head_bytes", lm_head_bytes},
      {"weights_per_row", weights_per_row},
      {"kv_bytes_per_token", kv_bytes_per_token},
      {"kv_bytes_per_session", kv_bytes_per_session},
      {"state_placement", state_placement},
      {"state_bytes_per_session", state_bytes_per_session},
      {"prefix_cache_bytes", prefix_cache_bytes},
      {"activation_bytes", activation_bytes},
      {"peak_device_bytes", peak_device_bytes},
      {"peak_host_bytes", peak_host_bytes},
      {"bytes_by_format", formats},
      {"notes", notes},
  };
  // Names of devices and tensors come from outside: bytes that are no UTF-8 must not make this throw.
  return plan.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Plan::to_text() const {
  std::string text;
  const auto line = [&text](const std::string& name, const std::string& value) {
    text += name + std::string(name.size() < 20 ? 20 - name.size() : 1, ' ') + value + "\n";
  };
  line("device", device_name + ", " + std::to_string(threads) + " threads");
  line("kernels", kernels);
  line("layers", std::to_string(layers) + ", " + std::to_string(resident_layers) + " resident" +
                     (slots > 0 ? ", " + std::to_string(slots) + " slots" : ""));
  line("home", byte_text(home_bytes));
  for (const auto& [format, bytes] : bytes_by_format) line("  " + format, byte_text(bytes));
  line("resident", byte_text(resident_bytes));
  const bool differs = prompt_streamed_bytes_per_pass != streamed_bytes_per_pass;
  line("streamed a pass",
       byte_text(streamed_bytes_per_pass) +
           (differs ? "; " + byte_text(prompt_streamed_bytes_per_pass) + " with rows of prompts" : ""));
  if (host_share > 0) {
    char share[16];
    std::snprintf(share, sizeof share, "%.4g", host_share);
    line("host share", std::string(share) + " of each matrix's rows, " + byte_text(host_bytes_per_pass) +
                           " read by host threads");
  }
  line("sessions", std::to_string(max_sessions) + " of " + std::to_string(context) + " positions");
  line("queue", std::to_string(max_queued) + " sessions; " + std::to_string(max_queued_tokens) +
                    " prompt tokens not computed yet, of all sessions");
  line("chunk", std::to_string(chunk) + " prompt rows a pass");
  line("KV cache", kv_type + " on " + kv_placement + ", " + byte_text(kv_bytes_per_token) + " a position, " +
                       byte_text(kv_bytes_per_session) + " a session");
  if (state_bytes_per_session > 0) {
    line("state", "f32 on " + state_placement + ", " + byte_text(state_bytes_per_session) + " a session");
  }
  line("prefix cache", prefix_cache_bytes > 0 ? "at most " + byte_text(prefix_cache_bytes) : "none");
  line("vocabulary", vocab_placement);
  line("activations", byte_text(activation_bytes));
  line("peak device", byte_text(peak_device_bytes));
  line("peak host", byte_text(peak_host_bytes));
  for (const std::string& note : notes) line("note", note);
  return text;
}

}  // namespace ete
