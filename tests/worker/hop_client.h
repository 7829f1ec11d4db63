#pragma once

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/service_fixture.h"

namespace ete::worker {

struct HopLoad {
  int sessions = 1;
  int steps = 1000;  // each session's
  int top_k = 256;
  bool full_row = false;
};

struct HopTimes {
  double p50_us = 0;
  double p99_us = 0;
  double replies_per_second = 0;  // of all sessions
};

// Step to StepResult at the client, over the Unix socket, with an engine that answers at once: what the hop
// between front and worker adds to each token.
inline HopTimes measure_hop(RunningService& running, const HopLoad& load) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> times(static_cast<size_t>(load.sessions));
  std::vector<std::thread> clients;
  const auto begin = Clock::now();
  for (int s = 0; s < load.sessions; ++s) {
    clients.emplace_back([&running, &load, &mine = times[static_cast<size_t>(s)], s] {
      Client client(running.stub());
      v1::SessionReply reply;
      client.open("hop " + std::to_string(s));
      if (!client.read(reply)) return;
      for (int i = 0; i < load.steps; ++i) {
        const auto sent = Clock::now();
        if (!client.step(0, {i % 1000}, load.top_k, load.full_row) || !client.read(reply)) return;
        mine.push_back(std::chrono::duration<double, std::micro>(Clock::now() - sent).count());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();

  std::vector<double> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  if (all.size() != static_cast<size_t>(load.sessions) * static_cast<size_t>(load.steps)) {
    throw std::runtime_error("a session ended early");
  }
  std::sort(all.begin(), all.end());
  const auto at = [&all](double share) {
    return all[static_cast<size_t>(share * static_cast<double>(all.size() - 1))];
  };
  return {at(0.5), at(0.99), static_cast<double>(all.size()) / seconds};
}

}  // namespace ete::worker
