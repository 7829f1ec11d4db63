#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "ete/v1/engine.pb.h"

namespace ete::front {

// A distribution over byte ids that depends on all ids so far, and a worker's answers about it.
struct ToyModel {
  static constexpr int32_t kVocab =
      300;  // past the byte tokenizer's 258 ids, as models pad their vocabularies

  // Adds `lead` to the logit of one id, chosen by the ids so far; -1: none.
  std::function<int32_t(const std::vector<int32_t>& ids)> favourite = [](const auto&) { return -1; };
  float lead = 15;
  // The noise is over 'a' to 'z'; all other ids are far behind.

  std::vector<float> row(const std::vector<int32_t>& ids) const {
    uint64_t state = 1469598103934665603ull;
    for (int32_t id : ids) state = (state ^ static_cast<uint64_t>(id)) * 1099511628211ull;
    std::vector<float> logits(kVocab, -20.0f);
    for (int32_t id = 'a'; id <= 'z'; ++id) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      logits[id] = static_cast<float>(state >> 40) / static_cast<float>(1 << 24) * 4 - 2;
    }
    if (const int32_t id = favourite(ids); id >= 0) logits[id] += lead + 20;
    return logits;
  }

  static std::string bytes_of(const std::vector<float>& row) {
    std::string bytes(row.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), row.data(), bytes.size());
    return bytes;
  }

  static void answer(const std::vector<float>& row, const v1::Wanted& wanted, v1::LogitsRow* out) {
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    const std::string& mask = wanted.allowed_mask();
    std::erase_if(order, [&](int32_t id) { return !mask.empty() && (mask[id / 8] >> (id % 8) & 1) == 0; });
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    for (int32_t i = 0; i < std::min<int32_t>(wanted.top_k(), static_cast<int32_t>(order.size())); ++i) {
      out->add_top_ids(order[i]);
      out->add_top_logits(row[order[i]]);
    }
    for (int32_t id : wanted.extra_ids()) out->add_extra_logits(row[id]);
    const double temperature = wanted.has_temperature() ? wanted.temperature() : 1.0;
    double sum = 0;
    for (int32_t id : order) sum += std::exp((row[id] - row[order[0]]) / temperature);
    out->set_logsumexp(row[order[0]] / temperature + std::log(sum));
    out->set_max_logit(row[order[0]]);
    if (wanted.full_row()) out->set_full_row(bytes_of(row));
  }
};

// A session of a worker that has this model.
struct ToySession {
  const ToyModel& model;
  std::vector<int32_t> ids;

  v1::StepResult take(const google::protobuf::RepeatedField<int32_t>& more, int64_t position,
                      const v1::Wanted& wanted, int32_t n_draft = 0) {
    ids.resize(static_cast<size_t>(position));
    ids.insert(ids.end(), more.begin(), more.end());
    v1::StepResult result;
    const bool all = wanted.rows() == v1::Wanted::ALL;
    result.set_position(static_cast<int64_t>(ids.size()) - (all ? more.size() : 1 + n_draft));
    result.set_length(static_cast<int64_t>(ids.size()));
    result.mutable_timings()->set_queued_ms(0.25);
    if (wanted.rows() == v1::Wanted::NONE) return result;
    for (int64_t at = result.position(); at < result.length(); ++at) {
      ToyModel::answer(row_at(at), wanted, result.add_rows());
    }
    return result;
  }

  // What follows that position.
  std::vector<float> row_at(int64_t position) const {
    return model.row({ids.begin(), ids.begin() + position + 1});
  }

  v1::SessionReply reply_to(const v1::SessionRequest& request) {
    v1::SessionReply reply;
    if (request.has_open() && request.open().prompt_ids().empty()) {
      reply.mutable_opened();
    } else if (request.has_open()) {
      *reply.mutable_step_result() = take(request.open().prompt_ids(), 0, request.open().wanted());
      reply.mutable_step_result()->set_reused_tokens(request.open().cache_salt() == "reuse" ? 1 : 0);
    } else if (request.has_step()) {
      *reply.mutable_step_result() = take(request.step().ids(), request.step().position(),
                                          request.step().wanted(), request.step().n_draft());
    } else {
      reply.mutable_full_row()->set_position(request.fetch_row().position());
      reply.mutable_full_row()->set_logits(ToyModel::bytes_of(row_at(request.fetch_row().position())));
    }
    return reply;
  }
};

}  // namespace ete::front
