// The pictures of a request's text.
//
// Thread safety: the engine's thread.
#pragma once

#include <utility>
#include <vector>

#include "engine/pictures/picture_rows.h"
#include "engine/pictures/prompt_pictures.h"

namespace kvcache {

struct JobPictures {
  explicit JobPictures(std::vector<PromptPicture> pictures)
      : list(std::move(pictures)), ranges(RangesOf(list)) {}

  std::vector<PromptPicture> list;  // ascending
  std::vector<PrefixRange> ranges;  // their tokens
  EmbeddedPtr rows{};               // of the picture that is read next, or null

  // Returns the first picture of which not all is in the first `length` tokens, or null.
  const PromptPicture* Next(Position length) const { return PictureFrom(list, length); }
  bool has_rows_of(const PromptPicture& picture) const {
    return rows != nullptr && rows->name == picture.picture->name();
  }
  // Returns the largest length, at most `length`, that ends in no picture.
  Position Before(Position length) const { return BeforePicture(list, length); }
  // Takes the tokens [begin, end) out. REQUIRES: neither cuts a picture.
  void Erase(Position begin, Position end) {
    EraseTokens(list, begin, end);
    ranges = RangesOf(list);
  }
};

}  // namespace kvcache
