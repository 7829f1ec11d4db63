#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "services/front/generation.h"
#include "tests/front/toy_model.h"

namespace ete::front {

// A Generation between a session that only notes what it is sent and a sink that keeps what it is told: what
// the worker answers, and when, is the test's.

class FakeSession : public EngineSession {
 public:
  explicit FakeSession(const ToyModel& model) : toy{model, {}} {}
  void send(v1::SessionRequest request) override { requests.push_back(std::move(request)); }
  void finish() override { finished = true; }
  void cancel() override { cancelled = true; }

  ToySession toy;
  std::deque<v1::SessionRequest> requests;
  bool finished = false, cancelled = false;
};

class Collector : public Generation::Sink {
 public:
  void on_reply(v1::GenerateReply reply) override {
    EXPECT_FALSE(ended);
    replies.push_back(std::move(reply));
  }
  bool wants_more() override { return !full; }
  void on_end(const std::optional<FrontError>& e) override {
    EXPECT_FALSE(ended);
    ended = true;
    error = e;
  }

  std::string text() const {
    std::string all;
    for (const auto& reply : replies) all += reply.piece().text();
    return all;
  }
  std::vector<int32_t> ids() const {
    std::vector<int32_t> all;
    for (const auto& reply : replies)
      all.insert(all.end(), reply.piece().ids().begin(), reply.piece().ids().end());
    return all;
  }
  const v1::Finish& finish() const { return replies.back().finish(); }

  std::vector<v1::GenerateReply> replies;
  bool full = false, ended = false;
  std::optional<FrontError> error;
};

inline GgufVocabulary byte_vocabulary() {
  GgufVocabulary v;
  v.model = "bytes";
  return v;
}

// "_a" is 5 and "a" 4, where "_" is a space that is no part of the text when it begins it.
inline GgufVocabulary spaced_vocabulary() {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", std::string("\xE2\x96\x81") + "a"};
  v.token_types = {2, 3, 3, 1, 1, 1};
  v.scores = {0, 0, 0, -1, -2, -0.5f};
  v.special_ids = {{"bos", 1}, {"eos", 2}};
  return v;
}

inline std::shared_ptr<const ServedModel> model_of(const GgufVocabulary& vocabulary, int64_t context) {
  auto model = std::make_shared<ServedModel>();
  model->name = "toy";
  model->vocab_size = ToyModel::kVocab;
  model->context = context;
  model->eos_token_ids = {257};
  model->tokenizer = tokenizer_from_gguf(vocabulary);
  return model;
}

struct Dialogue {
  explicit Dialogue(GenerationRequest request, ToyModel toy_model = {},
                    const GgufVocabulary& vocabulary = byte_vocabulary(), int64_t context = 64)
      : toy(std::move(toy_model)),
        session(toy),
        generation(model_of(vocabulary, context), std::move(request), sink, session) {
    generation.start();
  }
  // Answers until nothing is asked, or `most` answers.
  void pump(int most = 1 << 20) { pump_in(session, most); }
  // The same, of another session that it has moved to.
  void pump_in(FakeSession& where, int most = 1 << 20) {
    for (int i = 0; i < most && !where.requests.empty(); ++i) {
      const v1::SessionRequest request = std::move(where.requests.front());
      where.requests.pop_front();
      generation.on_session_reply(where.toy.reply_to(request));
    }
  }

  ToyModel toy;
  FakeSession session;
  Collector sink;
  Generation generation;
};

inline GenerationRequest request_for(const std::string& prompt) {
  GenerationRequest request;
  request.request_id = "test";
  request.prompt_ids.assign(prompt.begin(), prompt.end());
  request.sampling.seed = 9;
  return request;
}

// Greedy choice repeats a phrase, with a change now and then.
inline ToyModel repeating() {
  ToyModel model;
  model.favourite = [](const std::vector<int32_t>& ids) -> int32_t {
    const size_t n = ids.size();
    return n % 19 == 0 ? 'x' : static_cast<int32_t>('a' + n % 7);
  };
  return model;
}

// Greedy, with more ids that cannot be drawn ahead of the others than are asked for: the first draw takes a
// whole row, and once fewer are asked for again another one does.
inline GenerationRequest request_that_fetches() {
  GenerationRequest request = request_for("pqr");
  request.sampling.temperature = 0;
  for (int32_t id = 'a'; id <= 'z'; ++id) request.sampling.logit_bias.emplace_back(id, -500.0f);
  for (int32_t id = 0; id < 60; ++id) request.sampling.logit_bias.emplace_back(id, -500.0f);
  request.max_tokens = 60;
  return request;
}

}  // namespace ete::front
