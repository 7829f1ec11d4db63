#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "ete/v1/generation.pb.h"
#include "services/front/front_error.h"

namespace ete::front {

// What makes a request for Generate one that is refused. Of a model of 300 ids, a context of 64 tokens and a
// tokenizer that makes a token of every byte; its bos is 256.
struct WrongGenerate {
  const char* what;
  std::function<void(v1::GenerateRequest&)> spoil;
  std::vector<const char*> message;  // must all be in it: field, value, what is accepted
  FrontErrorCode code = FrontErrorCode::invalid_argument;
};

inline void PrintTo(const WrongGenerate& row, std::ostream* out) { *out << row.what; }

inline std::vector<WrongGenerate> wrong_generates() {
  using Request = v1::GenerateRequest;
  using Row = WrongGenerate;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  return {

      Row{"empty name",
          [](Request& r) { r.set_request_id(std::string("")); },
          {"request_id", "0 bytes", "1 to 128"}},
      Row{"long name",
          [](Request& r) { r.set_request_id(std::string(129, 'a')); },
          {"request_id", "129 bytes"}},
      Row{"name with newline",
          [](Request& r) { r.set_request_id(std::string("a\nb")); },
          {"request_id", "\\x0a", "ASCII"}},
      Row{"name with DEL",
          [](Request& r) { r.set_request_id(std::string("\x7f")); },
          {"request_id", "\\x7f"}},
      Row{"name beyond ASCII",
          [](Request& r) { r.set_request_id(std::string("é")); },
          {"request_id", "\\xc3\\xa9"}},
      Row{"other model",
          [](Request& r) { r.set_model(std::string("gpt")); },
          {"model", "\"gpt\"", "\"toy\""}},
      Row{"empty model", [](Request& r) { r.set_model(std::string("")); }, {"model", "\"\""}},
      Row{"no prompt", [](Request& r) { r.clear_text(); }, {"prompt", "text or tokens"}},
      Row{"empty tokens", [](Request& r) { r.mutable_tokens(); }, {"tokens.ids", "at least one"}},
      Row{"negative token",
          [](Request& r) { r.mutable_tokens()->add_ids(-1); },
          {"tokens.ids[0]", "-1", "[0, 300)"}},
      Row{"token past the vocabulary",
          [](Request& r) {
            r.mutable_tokens()->add_ids(299);
            r.mutable_tokens()->add_ids(300);
          },
          {"tokens.ids[1]", "300", "[0, 300)"}},
      Row{"add_special with tokens",
          [](Request& r) {
            r.mutable_tokens()->add_ids(1);
            r.set_add_special(true);
          },
          {"add_special", "text"}},
      Row{"parse_special with tokens",
          [](Request& r) {
            r.mutable_tokens()->add_ids(1);
            r.set_parse_special(false);
          },
          {"parse_special", "text"}},
      Row{"text of no token",
          [](Request& r) {
            r.set_text(std::string(""));
            r.set_add_special(false);
          },
          {"text", "at least one token"}},
      Row{"text longer than the context",
          [](Request& r) { r.set_text(std::string(64, 'x')); },
          {"text", "65", "64"},
          FrontErrorCode::context_exceeded},
      Row{"tokens longer than the context",
          [](Request& r) {
            for (int i = 0; i < 65; ++i) r.mutable_tokens()->add_ids(i);
          },
          {"tokens.ids", "65", "64"},
          FrontErrorCode::context_exceeded},
      Row{"text that is not UTF-8", [](Request& r) { r.set_text(std::string("ab\xFF")); }, {"UTF-8", "2"}},
      Row{"negative temperature",
          [](Request& r) { r.mutable_sampling()->set_temperature(-0.5f); },
          {"sampling.temperature", "-0.5", "[0, 3.40282e+38]"}},
      Row{"NaN temperature",
          [](Request& r) { r.mutable_sampling()->set_temperature(NAN); },
          {"sampling.temperature", "nan"}},
      Row{"infinite temperature",
          [](Request& r) { r.mutable_sampling()->set_temperature(kInfinity); },
          {"sampling.temperature", "inf", "[0, 3.40282e+38]"}},
      Row{"negative top_k",
          [](Request& r) { r.mutable_sampling()->set_top_k(-1); },
          {"sampling.top_k", "-1"}},
      Row{"no grammar",
          [](Request& r) { r.mutable_grammar(); },
          {"grammar", "gbnf, json_schema or json_object"}},
      Row{"grammar without root",
          [](Request& r) { r.mutable_grammar()->set_gbnf("x ::= [a]"); },
          {"grammar.gbnf", "root"}},
      Row{"schema that is no JSON",
          [](Request& r) { r.mutable_grammar()->set_json_schema("{"); },
          {"grammar.json_schema", "no JSON"}},
      Row{"false json_object",
          [](Request& r) { r.mutable_grammar()->set_json_object(false); },
          {"grammar.json_object", "true"}},
      Row{"long prefix",
          [](Request& r) {
            r.mutable_grammar()->set_json_object(true);
            r.mutable_grammar()->set_prefix(std::string(1025, 'x'));
          },
          {"grammar.prefix", "1025 bytes", "1024"}},
      Row{"allowed id past the vocabulary",
          [](Request& r) { r.mutable_sampling()->add_allowed_token_ids(300); },
          {"sampling.allowed_token_ids[0]", "300"}},
      Row{"negative min_tokens",
          [](Request& r) { r.mutable_stopping()->set_min_tokens(-1); },
          {"stopping.min_tokens", "-1"}},
      Row{"min_tokens above max_tokens",
          [](Request& r) {
            r.mutable_stopping()->set_min_tokens(5);
            r.mutable_stopping()->set_max_tokens(4);
          },
          {"stopping.min_tokens", "5", "max_tokens, 4"}},
      Row{"zero typical_p",
          [](Request& r) { r.mutable_sampling()->set_typical_p(0); },
          {"sampling.typical_p", "0", "(0, 1]"}},
      Row{"NaN typical_p",
          [](Request& r) { r.mutable_sampling()->set_typical_p(NAN); },
          {"sampling.typical_p", "nan"}},
      Row{"XTC probability above 1",
          [](Request& r) { r.mutable_sampling()->set_xtc_probability(1.5f); },
          {"sampling.xtc_probability", "1.5", "[0, 1]"}},
      Row{"XTC threshold alone",
          [](Request& r) { r.mutable_sampling()->set_xtc_threshold(0.1f); },
          {"sampling.xtc_threshold", "xtc_probability"}},
      Row{"XTC threshold above a half",
          [](Request& r) {
            r.mutable_sampling()->set_xtc_probability(0.5f);
            r.mutable_sampling()->set_xtc_threshold(0.6f);
          },
          {"sampling.xtc_threshold", "0.6", "(0, 0.5]"}},
      Row{"negative DRY",
          [](Request& r) { r.mutable_sampling()->set_dry_multiplier(-1); },
          {"sampling.dry_multiplier", "-1"}},
      Row{"NaN DRY",
          [](Request& r) { r.mutable_sampling()->set_dry_multiplier(NAN); },
          {"sampling.dry_multiplier", "nan"}},
      Row{"DRY base alone",
          [](Request& r) { r.mutable_sampling()->set_dry_base(2); },
          {"sampling.dry_base", "dry_multiplier"}},
      Row{"DRY base below 1",
          [](Request& r) {
            r.mutable_sampling()->set_dry_multiplier(1);
            r.mutable_sampling()->set_dry_base(0.5f);
          },
          {"sampling.dry_base", "0.5", "[1, "}},
      Row{"DRY of no length",
          [](Request& r) {
            r.mutable_sampling()->set_dry_multiplier(1);
            r.mutable_sampling()->set_dry_allowed_length(0);
          },
          {"sampling.dry_allowed_length", "0", "at least 1"}},
      Row{"DRY of a long range",
          [](Request& r) {
            r.mutable_sampling()->set_dry_multiplier(1);
            r.mutable_sampling()->set_dry_range(65'537);
          },
          {"sampling.dry_range", "65537", "65536"}},
      Row{"empty DRY breaker",
          [](Request& r) {
            r.mutable_sampling()->set_dry_multiplier(1);
            r.mutable_sampling()->add_dry_sequence_breakers("");
          },
          {"sampling.dry_sequence_breakers[0]", "0 bytes", "1 to 64"}},
      Row{"zero mirostat",
          [](Request& r) { r.mutable_sampling()->set_mirostat_tau(0); },
          {"sampling.mirostat_tau", "0"}},
      Row{"mirostat eta alone",
          [](Request& r) { r.mutable_sampling()->set_mirostat_eta(0.1f); },
          {"sampling.mirostat_eta", "mirostat_tau"}},
      Row{"greedy mirostat",
          [](Request& r) {
            r.mutable_sampling()->set_mirostat_tau(5);
            r.mutable_sampling()->set_temperature(0);
          },
          {"sampling.mirostat_tau", "5", "temperature 0"}},
      Row{"mirostat beside top_p",
          [](Request& r) {
            r.mutable_sampling()->set_mirostat_tau(5);
            r.mutable_sampling()->set_top_p(0.5f);
          },
          {"sampling.mirostat_tau", "5", "without top_k"}},
      Row{"dynamic temperature beyond the temperature",
          [](Request& r) { r.mutable_sampling()->set_dynamic_temperature_range(1.5f); },
          {"sampling.dynamic_temperature_range", "1.5", "[0, 1]"}},
      Row{"exponent alone",
          [](Request& r) { r.mutable_sampling()->set_dynamic_temperature_exponent(2); },
          {"sampling.dynamic_temperature_exponent", "dynamic_temperature_range"}},
      Row{"zero top_p",
          [](Request& r) { r.mutable_sampling()->set_top_p(0); },
          {"sampling.top_p", "0", "(0, 1]"}},
      Row{"negative top_p",
          [](Request& r) { r.mutable_sampling()->set_top_p(-0.1f); },
          {"sampling.top_p", "-0.1"}},
      Row{"top_p above 1",
          [](Request& r) { r.mutable_sampling()->set_top_p(1.5f); },
          {"sampling.top_p", "1.5"}},
      Row{"NaN top_p", [](Request& r) { r.mutable_sampling()->set_top_p(NAN); }, {"sampling.top_p", "nan"}},
      Row{"negative min_p",
          [](Request& r) { r.mutable_sampling()->set_min_p(-0.1f); },
          {"sampling.min_p", "-0.1", "[0, 1]"}},
      Row{"min_p above 1",
          [](Request& r) { r.mutable_sampling()->set_min_p(1.1f); },
          {"sampling.min_p", "1.1"}},
      Row{"NaN min_p", [](Request& r) { r.mutable_sampling()->set_min_p(NAN); }, {"sampling.min_p", "nan"}},
      Row{"zero repetition penalty",
          [](Request& r) { r.mutable_sampling()->set_repetition_penalty(0); },
          {"sampling.repetition_penalty", "0", "(0, 3.40282e+38]"}},
      Row{"negative repetition penalty",
          [](Request& r) { r.mutable_sampling()->set_repetition_penalty(-1); },
          {"sampling.repetition_penalty", "-1"}},
      Row{"NaN repetition penalty",
          [](Request& r) { r.mutable_sampling()->set_repetition_penalty(NAN); },
          {"sampling.repetition_penalty", "nan"}},
      Row{"infinite repetition penalty",
          [](Request& r) { r.mutable_sampling()->set_repetition_penalty(kInfinity); },
          {"sampling.repetition_penalty", "inf"}},
      Row{"presence penalty above 2",
          [](Request& r) { r.mutable_sampling()->set_presence_penalty(2.5f); },
          {"sampling.presence_penalty", "2.5", "[-2, 2]"}},
      Row{"NaN presence penalty",
          [](Request& r) { r.mutable_sampling()->set_presence_penalty(NAN); },
          {"sampling.presence_penalty", "nan"}},
      Row{"frequency penalty below -2",
          [](Request& r) { r.mutable_sampling()->set_frequency_penalty(-2.5f); },
          {"sampling.frequency_penalty", "-2.5", "[-2, 2]"}},
      Row{"NaN frequency penalty",
          [](Request& r) { r.mutable_sampling()->set_frequency_penalty(NAN); },
          {"sampling.frequency_penalty", "nan"}},
      Row{"bias of a negative id",
          [](Request& r) { (*r.mutable_sampling()->mutable_logit_bias())[-3] = 1; },
          {"sampling.logit_bias", "-3", "[0, 300)"}},
      Row{"bias past the vocabulary",
          [](Request& r) { (*r.mutable_sampling()->mutable_logit_bias())[300] = 1; },
          {"sampling.logit_bias", "300", "[0, 300)"}},
      Row{"NaN bias",
          [](Request& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = NAN; },
          {"sampling.logit_bias[5]", "nan"}},
      Row{"infinite bias",
          [](Request& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = kInfinity; },
          {"sampling.logit_bias[5]", "inf", "-infinity"}},
      Row{"negative max_tokens",
          [](Request& r) { r.mutable_stopping()->set_max_tokens(-1); },
          {"stopping.max_tokens", "-1", "at least 0"}},
      Row{"empty stop",
          [](Request& r) { r.mutable_stopping()->add_stop(std::string("")); },
          {"stopping.stop[0]", "0 bytes"}},
      Row{"long stop",
          [](Request& r) {
            r.mutable_stopping()->add_stop(std::string("ok"));
            r.mutable_stopping()->add_stop(std::string(1025, 'a'));
          },
          {"stopping.stop[1]", "1025 bytes", "1024"}},
      Row{"too many stops",
          [](Request& r) {
            for (int i = 0; i < 65; ++i) r.mutable_stopping()->add_stop(std::string("x"));
          },
          {"stopping.stop", "65", "64"}},
      Row{"stop token past the vocabulary",
          [](Request& r) { r.mutable_stopping()->add_stop_token_ids(300); },
          {"stopping.stop_token_ids[0]", "300"}},
      Row{"negative stop token",
          [](Request& r) { r.mutable_stopping()->add_stop_token_ids(-1); },
          {"stopping.stop_token_ids[0]", "-1"}},
      Row{"too many stop tokens",
          [](Request& r) {
            for (int i = 0; i < 1025; ++i) r.mutable_stopping()->add_stop_token_ids(1);
          },
          {"stopping.stop_token_ids", "1025", "1024"}},
      Row{"negative logprobs", [](Request& r) { r.mutable_logprobs()->set_top(-1); }, {"logprobs.top", "-1"}},
      Row{"more logprobs than ids",
          [](Request& r) { r.mutable_logprobs()->set_top(301); },
          {"logprobs.top", "301", "[0, 300]"}},
      Row{"long salt",
          [](Request& r) { r.set_cache_salt(std::string(1025, 's')); },
          {"cache_salt", "1025", "1024"}}};
}

}  // namespace ete::front
