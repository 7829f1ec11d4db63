#include "services/front/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "services/front/front_error.h"

namespace ete::front {
namespace {

constexpr uint32_t kMatchLimit = 20'000'000;   // backtracking steps of one match
constexpr uint32_t kHeapLimitKiB = 64 * 1024;  // of the interpreter, where JIT does not take a pattern
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 4 * 1024 * 1024;

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "PCRE2 error " + std::to_string(code);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Regex::Code {
  pcre2_compile_context* context = nullptr;
  pcre2_code* code = nullptr;
  ~Code() {
    pcre2_code_free(code);
    pcre2_compile_context_free(context);
  }
};

Regex::Regex(std::string_view pattern) : code_(std::make_unique<Code>()), pattern_(pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    throw FrontError(FrontErrorCode::unsupported, "a pattern of " + std::to_string(pattern.size()) +
                                                      " bytes; at most " + std::to_string(kMaxPatternBytes) +
                                                      " are accepted");
  }
  const std::string translated = translate_pattern(pattern);
  code_->context = pcre2_compile_context_create(nullptr);
  if (!code_->context) throw std::bad_alloc();
  pcre2_set_newline(code_->context, PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                              &error, &offset, code_->context);
  if (!code_->code) {
    throw FrontError(FrontErrorCode::corrupt,
                     "pattern " + pattern_ + " does not compile: " + pcre2_message(error));
  }
  const int jit = pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);
  if (jit == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
}

Regex::~Regex() = default;

struct Regex::Matcher::State {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
  ~State() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Matcher::Matcher() : state_(std::make_unique<State>()) {
  if (!state_->data || !state_->context) throw std::bad_alloc();
  pcre2_set_match_limit(state_->context, kMatchLimit);
  pcre2_set_heap_limit(state_->context, kHeapLimitKiB);
  if (state_->stack) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Regex::Matcher::~Matcher() = default;

bool Regex::Matcher::find(const Regex& regex, std::string_view text, size_t from, Range& range) {
  const int n = pcre2_match(regex.code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                            PCRE2_NO_UTF_CHECK, state_->data, state_->context);
  if (n == PCRE2_ERROR_NOMATCH) return false;
  if (n < 0) {
    throw FrontError(FrontErrorCode::resource_exhausted, "pattern " + regex.pattern_ + " on a text of " +
                                                             std::to_string(text.size()) +
                                                             " bytes: " + pcre2_message(n));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(state_->data);
  range = {offsets[0], offsets[1]};
  return true;
}

}  // namespace ete::front
