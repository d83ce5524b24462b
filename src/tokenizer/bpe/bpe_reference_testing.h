// For tests and fuzzers: byte-level BPE implemented literally, on strings and a list of merges.
// Each merge scans all pairs, so encoding is quadratic or worse.
//
// Thread safety: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/bpe/byte_alphabet.h"
#include "tokenizer/bpe/pre_tokenizer.h"
#include "tokenizer/unicode/utf8_stream.h"
#include "tokenizer/vocabulary.h"

namespace kvcache::bpe_reference {

class Reference {
 public:
  // `vocabulary` must outlive the object.
  Reference(const TokenizerData& data, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), pre_(**FindPreTokenizer(data.pre)) {
    for (std::size_t i = 0; i < data.merges.size(); ++i) AddMerge(data.merges[i], i);
  }

  // Returns the ids of a piece of plain text.
  std::vector<std::int32_t> Encode(std::string_view text) const {
    std::string repaired;
    text = RepairUtf8(text, &repaired);
    std::vector<std::int32_t> ids;
    CutText(pre_.stages, text.data(), text.data() + text.size(), [&](std::string_view word) {
      if (pre_.ignore_merges && Token(std::string(word)) != kNoToken) {
        ids.push_back(Token(std::string(word)));
      } else {
        for (const std::string& part : Merged(word)) Append(part, &ids);
      }
    });
    return ids;
  }

 private:
  void AddMerge(const std::string& line, std::size_t rank) {
    const std::size_t space = line.find(' ', 1);
    if (space == std::string::npos || space + 1 == line.size()) return;
    std::string left;
    std::string right;
    const bool spelled = AppendBytesOf(std::string_view(line).substr(0, space), &left) &&
                         AppendBytesOf(std::string_view(line).substr(space + 1), &right);
    if (!spelled) return;
    if (ranks_.emplace(std::pair(left, right), rank).second) {
      made_of_.emplace(left + right, std::pair(left, right));
    }
  }

  // Returns the token with these bytes; kNoToken if there is none or text must not become it.
  std::int32_t Token(const std::string& bytes) const {
    const std::int32_t token = vocabulary_.Find(SpellBytes(bytes));
    return token != kNoToken && vocabulary_.CanBeMerged(token) ? token : kNoToken;
  }

  std::vector<std::string> Merged(std::string_view word) const {
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    for (;;) {
      std::size_t best = parts.size();
      std::size_t best_rank = 0;
      for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto at = ranks_.find({parts[i], parts[i + 1]});
        if (at == ranks_.end() || (best < parts.size() && at->second >= best_rank)) continue;
        best = i;
        best_rank = at->second;
      }
      if (best == parts.size()) return parts;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
  }

  void Append(const std::string& bytes, std::vector<std::int32_t>* ids) const {
    const auto parts = made_of_.find(bytes);
    if (const std::int32_t token = Token(bytes); token != kNoToken) {
      ids->push_back(token);
    } else if (bytes.size() > 1 && parts != made_of_.end()) {
      Append(parts->second.first, ids);
      Append(parts->second.second, ids);
    } else if (vocabulary_.ids().unknown != kNoToken) {
      ids->push_back(vocabulary_.ids().unknown);
    }
  }

  const Vocabulary& vocabulary_;
  const PreTokenizer& pre_;
  std::map<std::pair<std::string, std::string>, std::size_t> ranks_;
  std::map<std::string, std::pair<std::string, std::string>> made_of_;
};

}  // namespace kvcache::bpe_reference
