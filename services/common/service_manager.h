#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace ete::service {

// Tells systemd how this service does, as sd_notify(3) and sd_watchdog_enabled(3) have it. Started by
// anything else, nobody asked to be told and every call does nothing. Thread-safe.
class ServiceManager {
 public:
  // Reads and removes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which are systemd's words to this
  // process alone. Make one, before any other thread starts.
  ServiceManager();

  // Start-up goes on, so the wait for ready() starts anew.
  void loading(const std::string& status) const;
  void ready(const std::string& status) const;
  void stopping() const;
  // To be told at least every watchdog_interval(), which is absent where nobody watches. Never waits: what
  // finds no room is lost. The others wait for 5 seconds at most.
  void alive() const;
  std::optional<std::chrono::milliseconds> watchdog_interval() const { return interval_; }

 private:
  void tell(const std::string& state, int flags = 0) const;

  std::string socket_;  // empty: nobody listens
  std::optional<std::chrono::milliseconds> interval_;
};

}  // namespace ete::service
