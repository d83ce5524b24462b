// For tests and fuzzers: the unigram model implemented literally. It tries every token at every
// position of the whole text: O(text × tokens).
//
// Thread safety: functions of their arguments.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/escaped_space.h"
#include "tokenizer/spm/spm_merge.h"
#include "tokenizer/vocabulary.h"

namespace kvcache::unigram_reference {

// Normalizes the spaces only, without a charsmap. REQUIRES: `text` is well-formed UTF-8.
inline std::string Normalize(std::string_view text, bool prefix, bool merge) {
  std::string normalized;
  bool in_word = false;
  bool has_prefix = false;
  for (const char c : text) {
    if (c != ' ' && !in_word && (merge || (prefix && !has_prefix))) {
      normalized += kEscapedSpace;
      has_prefix = true;
    }
    in_word = c != ' ';
    if (in_word) normalized += c;
    if (!in_word && !merge) normalized += kEscapedSpace;
  }
  return normalized;
}

inline float UnknownScore(const Vocabulary& vocabulary) {
  float worst = std::numeric_limits<float>::max();
  for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
    const bool normal = vocabulary.kind(token) == TokenKind::kNormal;
    if (normal) worst = std::min(worst, vocabulary.score(token));
  }
  return worst - 10;
}

// Returns the ids of normalized text.
inline std::vector<std::int32_t> Encode(const Vocabulary& vocabulary, std::string_view text) {
  struct Path {
    double score = -std::numeric_limits<double>::max();
    std::size_t from = 0;
    std::int32_t token = kNoToken;
  };
  std::vector<Path> paths(text.size() + 1);
  paths[0].score = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    const std::size_t length = SpmFirstCharacter(rest).size();
    bool has_character = false;
    const auto relax = [&](std::size_t bytes, std::int32_t token, float score) {
      const double sum = paths[at].score + double{score};
      if (sum > paths[at + bytes].score) paths[at + bytes] = {sum, at, token};
    };
    for (std::int32_t token = 0; token < vocabulary.size(); ++token) {
      const std::string_view piece = vocabulary.text(token);
      const TokenKind kind = vocabulary.kind(token);
      if (piece.empty() || !vocabulary.CanBeMerged(token) || !rest.starts_with(piece)) continue;
      if (kind == TokenKind::kUndefined) continue;
      has_character = has_character || piece.size() == length;
      relax(piece.size(), token, kind == TokenKind::kUserDefined ? 0 : vocabulary.score(token));
    }
    if (!has_character) relax(length, vocabulary.ids().unknown, UnknownScore(vocabulary));
    at += length;
  }
  std::vector<std::int32_t> ids;
  for (std::size_t at = text.size(); at > 0; at = paths[at].from) {
    const std::int32_t token = paths[at].token;
    const bool again = !ids.empty() && token == vocabulary.ids().unknown && ids.back() == token;
    if (!again) ids.push_back(token);
  }
  std::erase(ids, kNoToken);
  std::reverse(ids.begin(), ids.end());
  return ids;
}

}  // namespace kvcache::unigram_reference
