// Where the pictures of a text are. All functions take pictures in ascending order, without overlap.
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "kvcache/prefix_cache.h"
#include "kvcache_engine/picture.h"

namespace kvcache {

// Returns the first picture that ends behind `at`, or null: the one that has the token at `at`, or the next one.
inline const PromptPicture* PictureFrom(std::span<const PromptPicture> pictures, Position at) {
  const auto next = std::find_if(pictures.begin(), pictures.end(),
                                 [&](const PromptPicture& picture) { return picture.end() > at; });
  return next == pictures.end() ? nullptr : &*next;
}

// Returns the picture that a text of `length` tokens ends in, or null.
inline const PromptPicture* PictureCutAt(std::span<const PromptPicture> pictures, Position length) {
  const PromptPicture* const next = PictureFrom(pictures, length);
  return next != nullptr && next->begin < length ? next : nullptr;
}

// Returns the largest length, at most `length`, that ends in no picture.
inline Position BeforePicture(std::span<const PromptPicture> pictures, Position length) {
  const PromptPicture* const cut = PictureCutAt(pictures, length);
  return cut == nullptr ? length : cut->begin;
}

// Returns the smallest length, at least `length`, that ends in no picture.
inline Position BehindPicture(std::span<const PromptPicture> pictures, Position length) {
  const PromptPicture* const cut = PictureCutAt(pictures, length);
  return cut == nullptr ? length : cut->end();
}

// Returns the end of the tokens behind `keep` that are removed from a full context of `length` tokens: half of them, and
// no part of a picture. A picture in the middle goes, too, unless it leaves less than a quarter and there is something
// before it to remove.
inline Position EndOfShift(std::span<const PromptPicture> pictures, Position keep,
                           Position length) {
  const Position middle = keep + (length - keep) / 2;
  const Position behind = BehindPicture(pictures, middle);
  const Position before = BeforePicture(pictures, middle);
  return length - behind < (length - keep) / 4 && before > keep ? before : behind;
}

inline std::vector<PrefixRange> RangesOf(std::span<const PromptPicture> pictures) {
  std::vector<PrefixRange> ranges;
  ranges.reserve(pictures.size());
  for (const PromptPicture& picture : pictures) ranges.push_back({picture.begin, picture.end()});
  return ranges;
}

// Takes the tokens [begin, end) out of the text. REQUIRES: neither cuts a picture.
inline void EraseTokens(std::vector<PromptPicture>& pictures, Position begin, Position end) {
  std::erase_if(pictures, [&](const PromptPicture& picture) {
    return picture.begin >= begin && picture.begin < end;
  });
  for (PromptPicture& picture : pictures) {
    if (picture.begin >= end) picture.begin -= end - begin;
  }
}

}  // namespace kvcache
