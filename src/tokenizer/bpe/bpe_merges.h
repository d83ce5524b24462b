// The merges of a byte-level BPE vocabulary, as numbers.
//
//   "Ġ t"     rank 0     symbol(" ") + symbol("t")  -> symbol(" t")
//   "h e"     rank 1     …
//
// A symbol is a byte string that occurs while merging. The symbol of a token is its id. Strings
// that are not tokens, or belong to tokens that plain text must not become, have numbers from the
// vocabulary's size on. Only in unusual vocabularies does merging end at such a symbol; then the
// two parts of its first merge replace it.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/keyed_hash.h"
#include "kvcache/status.h"
#include "tokenizer/open_hash_table.h"
#include "tokenizer/text_index.h"

namespace kvcache {

using BpeSymbol = std::int32_t;
inline constexpr BpeSymbol kNoSymbol = -1;

class BpeMerges {
 public:
  static constexpr std::uint32_t kNoRank = ~std::uint32_t{0};

  // The merge of two neighbours. The lowest rank is merged first.
  struct Merge {
    std::uint32_t rank = kNoRank;
    BpeSymbol result = kNoSymbol;
  };

  BpeMerges() = default;

  // `merges` are the lines of a file: two spelled strings (byte_alphabet.h) with a space between
  // them. Skips malformed lines (no space, characters outside the alphabet); among equal lines the
  // first one counts. `tokens` are the bytes of the tokens that text may become.
  // Errors: kCorrupt: more than 2^24 merges. Cost: O(bytes of all merges).
  static Result<BpeMerges> Make(const std::vector<std::string>& merges, const TextIndex& tokens);

  BpeSymbol SymbolOf(std::uint8_t byte) const { return byte_symbols_[byte]; }

  // Returns the merge of two single bytes; kNoRank if there is none.
  Merge FindBytes(std::uint8_t left, std::uint8_t right) const {
    return byte_merges_[std::size_t{left} << 8 | right];
  }
  // Returns the merge of two symbols; kNoRank if there is none.
  Merge Find(BpeSymbol left, BpeSymbol right) const;

  // Returns the number of distinct, well-formed merges.
  std::size_t size() const { return size_; }

  // Visits the tokens that make up a symbol, from left to right; only the symbol if it is a token.
  // Visits kNoSymbol for a byte without a token.
  template <typename Visitor>
  void ForEachToken(BpeSymbol symbol, const Visitor& visit) const {
    if (symbol < tokens_) return visit(symbol);
    std::vector<BpeSymbol> pending = {symbol};
    while (!pending.empty()) {
      symbol = pending.back();
      pending.pop_back();
      const Parts parts = symbol < tokens_ ? Parts{} : PartsOf(symbol);
      if (parts.left == kNoSymbol) {
        visit(symbol < tokens_ ? symbol : kNoSymbol);
      } else {
        pending.push_back(parts.right);
        pending.push_back(parts.left);
      }
    }
  }

 private:
  struct Slot {
    BpeSymbol left = kNoSymbol;
    BpeSymbol right = kNoSymbol;
    Merge merge;
    bool IsFree() const { return left == kNoSymbol; }
  };
  struct HoldsPair {
    BpeSymbol left;
    BpeSymbol right;
    bool operator()(const Slot& slot) const { return slot.left == left && slot.right == right; }
  };
  struct Parts {
    BpeSymbol left = kNoSymbol;
    BpeSymbol right = kNoSymbol;
  };
  struct KeyedHash {
    std::size_t operator()(const std::string& text) const;
  };

  Parts PartsOf(BpeSymbol symbol) const {
    return parts_[static_cast<std::size_t>(symbol - tokens_)];
  }
  BpeSymbol Intern(const std::string& text, const TextIndex& tokens);
  void Add(std::uint32_t rank, const std::string& merge, const TextIndex& tokens);
  std::uint64_t HashOf(BpeSymbol left, BpeSymbol right) const;
  void FillByteMerges();

  BpeSymbol tokens_ = 0;  // symbols below are tokens
  std::array<BpeSymbol, 256> byte_symbols_{};
  std::vector<Merge> byte_merges_;  // by two bytes
  OpenHashTable<Slot> table_;
  std::uint64_t key_ = 0;
  std::size_t size_ = 0;
  std::vector<Parts> parts_;  // of symbols that are not tokens
  std::unordered_map<std::string, BpeSymbol, KeyedHash> others_;
};

}  // namespace kvcache
