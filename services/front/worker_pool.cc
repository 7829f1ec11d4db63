#include "services/front/worker_pool.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "services/common/safe_text.h"

namespace ete::front {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kNamesInterval{2'000};
// How many more sessions than the least busy worker the one that holds a prefix may have.
constexpr int64_t kPrefixSlack = 4;

using Clients = std::vector<std::shared_ptr<EngineClient>>;

// As the front may mix their sessions: what one encodes the other decodes.
bool same_model(const ServedModel& a, const ServedModel& b) {
  return a.name == b.name && a.tokenizer_sha256 == b.tokenizer_sha256 && a.vocab_size == b.vocab_size &&
         a.context == b.context;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "\"" : " or \"") + name + "\"";
  return text;
}

// Of the models that workers serve or served last.
std::vector<std::string> names_of(const std::vector<EngineClient::State>& states) {
  std::vector<std::string> names;
  for (const auto& state : states) {
    const bool known = std::find(names.begin(), names.end(), state.name) != names.end();
    if (!state.name.empty() && !known) names.push_back(state.name);
  }
  return names;
}

std::vector<EngineClient::State> states_of(const Clients& clients) {
  std::vector<EngineClient::State> states;
  for (const auto& client : clients) states.push_back(client->state());
  return states;
}

// Why none of these workers serves.
FrontError away_error(const std::vector<EngineClient::State>& states, const std::string& name) {
  std::optional<FrontError> error;
  std::string all;
  for (const auto& state : states) {
    if (!state.away || (!name.empty() && !state.name.empty() && state.name != name)) continue;
    all += (all.empty() ? "" : "; ") + std::string(state.away->what());
    // What passes by itself matters more to whoever may try again.
    if (!error || state.away->code() == FrontErrorCode::unavailable) error = state.away;
  }
  if (!error) return {FrontErrorCode::unavailable, "no worker serves the model now"};
  return {error->code(), all, error->field()};
}

}  // namespace

WorkerPool::WorkerPool(const Options& options, std::function<void(bool serving)> on_serving)
    : options_(options),
      tls_(options.security.tls.authority.empty()
               ? nullptr
               : std::make_shared<service::TlsReader>(options.security.tls, "workers")),
      token_(options.security.token_file.empty()
                 ? nullptr
                 : std::make_shared<service::SecretFile>(options.security.token_file)),
      on_serving_(std::move(on_serving)) {
  bool dns = false;
  Clients clients;
  for (size_t place = 0; place < options_.workers.size(); ++place) {
    const WorkerName& name = options_.workers[place];
    if (!name.dns) clients.push_back(make_client(label_of(name.address, place), ""));
    dns = dns || name.dns;
  }
  {
    const std::lock_guard lock(mutex_);
    clients_ = std::move(clients);
  }
  changed();  // what happened before they were known
  thread_ = std::thread([this] { run(); });
  if (dns) names_thread_ = std::thread([this] { run_names(); });
}

WorkerPool::~WorkerPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (names_thread_.joinable()) names_thread_.join();
  thread_.join();
  call_settled();
  for (const auto& client : workers()) client->stop();
  for (const auto& client : retired_) client->stop();
}

std::shared_ptr<EngineClient> WorkerPool::make_client(const WorkerLabel& label, const std::string& tls_name) {
  const WorkerLink link{.label = label, .tls_name = tls_name, .tls = tls_, .token = token_};
  return std::make_shared<EngineClient>(link, [this] { changed(); });
}

Clients WorkerPool::workers() const {
  const std::lock_guard lock(mutex_);
  return clients_;
}

void WorkerPool::changed() {
  {
    const std::lock_guard lock(serving_mutex_);
    const auto states = states_of(workers());
    const bool serving =
        std::any_of(states.begin(), states.end(), [](const auto& state) { return state.serving != nullptr; });
    if (std::exchange(serving_, serving) != serving) on_serving_(serving);
  }
  wake_.notify_all();
}

std::shared_ptr<const ServedModel> WorkerPool::model(const std::string& name) const {
  const auto states = states_of(workers());
  const std::vector<std::string> names = names_of(states);
  const bool known = std::find(names.begin(), names.end(), name) != names.end();
  if (name.empty() ? names.size() > 1 : !names.empty() && !known) {
    throw FrontError(FrontErrorCode::unknown_model,
                     "model: " + (name.empty() ? "nothing" : "\"" + service::safe_text(name, 64) + "\"") +
                         " is not accepted; expected " + listed(names) +
                         (names.size() > 1 ? ", which are served" : ", which is served"),
                     "model");
  }
  for (const auto& state : states) {
    if (state.serving != nullptr && (name.empty() || state.serving->name == name)) return state.serving;
  }
  throw away_error(states, name);
}

std::vector<std::shared_ptr<const ServedModel>> WorkerPool::models() const {
  const auto states = states_of(workers());
  std::vector<std::shared_ptr<const ServedModel>> models;
  for (const auto& state : states) {
    if (state.serving == nullptr) continue;
    const bool known = std::any_of(models.begin(), models.end(),
                                   [&](const auto& model) { return model->name == state.serving->name; });
    if (!known) models.push_back(state.serving);
  }
  if (models.empty()) throw away_error(states, "");
  return models;
}

std::shared_ptr<EngineClient> WorkerPool::choose(const ServedModel& model, const std::string& salt,
                                                 std::span<const int32_t> ids) {
  Clients able;
  const Clients all = workers();
  for (const auto& client : all) {
    const auto state = client->state();
    if (state.serving != nullptr && same_model(*state.serving, model)) able.push_back(client);
  }
  if (able.empty()) throw away_error(states_of(all), model.name);
  if (able.size() == 1) return able[0];
  {
    const std::lock_guard lock(mutex_);
    std::rotate(able.begin(), able.begin() + static_cast<ptrdiff_t>(turn_++ % able.size()), able.end());
  }
  auto least = *std::min_element(able.begin(), able.end(),
                                 [](const auto& a, const auto& b) { return a->load() < b->load(); });
  if (const auto where = routes_.find(salt, ids)) {
    for (const auto& client : able) {
      if (client->where() == *where && client->load() <= least->load() + kPrefixSlack) return client;
    }
  }
  return least;
}

void WorkerPool::remember(const std::string& salt, std::span<const int32_t> ids, const EngineClient& worker) {
  if (workers().size() > 1) routes_.remember(salt, ids, worker.where());
}

bool WorkerPool::settled(const Wait& wait) const {
  const auto now = std::chrono::system_clock::now();
  if (stop_ || now >= wait.deadline) return true;
  bool may_come_back = false;
  for (const auto& client : clients_) {
    const EngineClient::State state = client->state();
    // A model that is being read for the first time may be any.
    if (!wait.model.empty() && !state.name.empty() && state.name != wait.model) continue;
    if (state.serving != nullptr) return true;
    const bool passing = state.away->code() == FrontErrorCode::unavailable;
    may_come_back = may_come_back || (passing && now < state.expected_since + wait.patience);
  }
  return !may_come_back;
}

void WorkerPool::when_settled(const Wait& wait, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (!settled(wait)) {
      // However often a worker begins to come back.
      Wait bounded = wait;
      bounded.deadline = std::min(wait.deadline, std::chrono::system_clock::now() + wait.patience);
      waiting_.push_back({bounded, std::move(then)});
      wake_.notify_all();
      return;
    }
  }
  then();
}

void WorkerPool::call_settled() {
  std::vector<Waiting> settled;
  {
    const std::lock_guard lock(mutex_);
    const auto first =
        std::stable_partition(waiting_.begin(), waiting_.end(),
                              [this](const Waiting& waiting) { return !this->settled(waiting.wait); });
    std::move(first, waiting_.end(), std::back_inserter(settled));
    waiting_.erase(first, waiting_.end());
  }
  for (const Waiting& waiting : settled) waiting.then();
}

void WorkerPool::run() {
  while (true) {
    call_settled();
    std::unique_lock lock(mutex_);
    if (stop_) return;
    if (waiting_.empty()) {
      wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    } else {
      wake_.wait_for(lock, kTick);
    }
  }
}

void WorkerPool::run_names() {
  while (true) {
    look_up_names();
    std::unique_lock lock(mutex_);
    if (wake_.wait_for(lock, kNamesInterval, [this] { return stop_; })) return;
  }
}

// A name that cannot be looked up keeps the workers that it had.
void WorkerPool::look_up_names() {
  const Clients before = workers();
  Clients after;
  const auto keep = [&](const service::Address& address, const std::string& tls_name) {
    const auto is_there = [&](const auto& client) { return client->where() == address.to_string(); };
    if (std::any_of(after.begin(), after.end(), is_there)) return;
    const auto known = std::find_if(before.begin(), before.end(), is_there);
    after.push_back(known != before.end() ? *known : make_client(label_of(address, after.size()), tls_name));
  };
  try {
    for (const WorkerName& name : options_.workers) {
      for (const service::Address& address : resolve(name)) keep(address, name.dns ? name.address.host : "");
    }
  } catch (const std::exception& error) {
    spdlog::warn("workers: {}", error.what());
    after = before;
  }
  retire_unnamed(after);
}

void WorkerPool::retire_unnamed(const Clients& kept) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& client : clients_) {
      if (std::find(kept.begin(), kept.end(), client) == kept.end()) retired_.push_back(client);
    }
    clients_ = kept;
  }
  changed();
  // Requests hold the worker that they are at.
  const auto done = std::stable_partition(retired_.begin(), retired_.end(),
                                          [](const auto& client) { return client.use_count() > 1; });
  for (auto client = done; client != retired_.end(); ++client) {
    spdlog::info("the worker at {} is not named any more", (*client)->where());
    (*client)->stop();
  }
  retired_.erase(done, retired_.end());
}

}  // namespace ete::front
