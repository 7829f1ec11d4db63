#include "services/front/tokenizer/stream_decoder.h"

namespace ete::front {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : table_(tokenizer.table()), skip_special_(skip_special), reader_(table_) {}

std::string StreamDecoder::push(int32_t id) {
  std::string out;
  if (skip_special_ && table_.is_special(id)) return out;
  held_ += begun_ ? std::string(table_.bytes(id)) : reader_.next(id);
  held_.erase(0, append_lossy(out, held_, table_.invalid_bytes, false));
  return out;
}

std::string StreamDecoder::flush() {
  std::string out;
  append_lossy(out, held_, table_.invalid_bytes, true);
  held_.clear();
  return out;
}

}  // namespace ete::front
