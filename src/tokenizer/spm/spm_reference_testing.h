// For tests and fuzzers: SentencePiece's BPE implemented literally. Each join scans all pairs, so
// encoding is quadratic or worse.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/spm/spm_merge.h"
#include "tokenizer/vocabulary.h"

namespace kvcache::spm_reference {

// Returns the token with this text; kNoToken if there is none or joining may not produce it.
inline std::int32_t Find(const Vocabulary& vocabulary, const std::string& text) {
  const std::int32_t token = vocabulary.Find(text);
  return token != kNoToken && vocabulary.CanBeMerged(token) ? token : kNoToken;
}

inline std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> characters;
  for (std::size_t i = 0; i < text.size(); i += characters.back().size()) {
    characters.emplace_back(SpmFirstCharacter(text.substr(i)));
  }
  return characters;
}

// Joins the best pair, the leftmost among equals. Returns false if there is none.
inline bool JoinBest(const Vocabulary& vocabulary, std::vector<std::string>* parts) {
  std::size_t best = parts->size();
  float best_score = 0;
  for (std::size_t i = 0; i + 1 < parts->size(); ++i) {
    const std::int32_t token = Find(vocabulary, (*parts)[i] + (*parts)[i + 1]);
    if (token == kNoToken) continue;
    if (best < parts->size() && !(vocabulary.score(token) > best_score)) continue;
    best = i;
    best_score = vocabulary.score(token);
  }
  if (best == parts->size()) return false;
  (*parts)[best] += (*parts)[best + 1];
  parts->erase(parts->begin() + static_cast<std::ptrdiff_t>(best) + 1);
  return true;
}

inline void AppendBytes(const Vocabulary& vocabulary, const std::string& character,
                        std::vector<std::int32_t>* ids) {
  std::vector<std::int32_t> bytes;
  for (const char c : character) {
    bytes.push_back(vocabulary.ByteToken(static_cast<std::uint8_t>(c)));
    if (bytes.back() == kNoToken) return ids->push_back(vocabulary.ids().unknown);
  }
  ids->insert(ids->end(), bytes.begin(), bytes.end());
}

// Returns the ids of a piece of plain text. REQUIRES: no score is NaN.
inline std::vector<std::int32_t> Encode(const Vocabulary& vocabulary, std::string_view text) {
  std::string escaped = vocabulary.add_space_prefix() && !text.empty() ? "\u2581" : "";
  for (const char c : text) escaped += c == ' ' ? std::string("\u2581") : std::string(1, c);
  std::vector<std::string> parts = Characters(escaped);
  while (JoinBest(vocabulary, &parts)) {
  }
  std::vector<std::int32_t> ids;
  for (const std::string& part : parts) {
    const std::int32_t token = Find(vocabulary, part);
    if (token != kNoToken) {
      ids.push_back(token);
    } else {
      AppendBytes(vocabulary, part, &ids);
    }
  }
  return ids;
}

}  // namespace kvcache::spm_reference
