#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "services/front/tokenizer/tokenizer.h"

namespace ete::front {

// Ids one by one to text, for one stream; not thread-safe.
//
// Every returned string is valid UTF-8 and ends at a character's end: at most 3 bytes of an unfinished
// character are held until the next id, flush() or proof that no character can come of them, and invalid
// bytes become U+FFFD at once. All returned strings joined are the tokenizer's decode() with U+FFFD for
// invalid bytes, and thereby its decode_text(), with one exception: the reference's ByteFallback
// (tokenizer.json) gives up a whole run of byte tokens when any part of it is invalid, which no stream can
// know ahead; here the run's valid characters are kept, as SentencePiece does.
class StreamDecoder {
 public:
  // tokenizer outlives the decoder.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  // Throws invalid_argument for a negative id.
  std::string push(int32_t id);
  // A text begins here: what is held is dropped, and no space of later ids is left out.
  void begin_text() {
    begun_ = true;
    held_.clear();
  }
  // The end of the text: what is held comes out as U+FFFD.
  std::string flush();

 private:
  const TokenTable& table_;
  bool skip_special_;
  PieceReader reader_;
  bool begun_ = false;
  std::string held_;  // at most 3 bytes between calls
};

}  // namespace ete::front
