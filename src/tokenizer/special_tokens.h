// Cuts a text at special tokens.
//
// Special tokens are searched for by length, the longest first, and by id among equal lengths. All
// occurrences of one are cut out from left to right; the next one is searched for in the rest. So
// with the tokens "ab" and "bcd", "abcd" becomes "a" and the token bcd. A token that strips white
// space also removes the white space beside it, up to the next special token.
//
// Searching for each of a vocabulary's thousands of special tokens would cost far more than the
// rest of encoding. So an automaton (Aho and Corasick, 1975) reads the text once and reports the
// special tokens that occur at all. Usually there are none.
//
// Structure tokens (Vocabulary::IsStructure) are found only with kParse, or in the parts of a
// marked text that its template wrote. Other user-defined tokens are text and found everywhere.
//
// Source of the rule: llama.cpp, src/llama-vocab.cpp, where user-defined tokens are found
// everywhere whatever they look like.
// Thread safety: const calls may run concurrently.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/open_hash_table.h"
#include "tokenizer/vocabulary.h"

namespace kvcache {

enum class SpecialText : std::uint8_t {
  kPlain,  // "</s>" in the text stays four characters: typed text cannot end a turn
  kParse,  // the text of a structure token becomes that token
};

// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool operator==(const TextRange&) const = default;
};

// A piece of plain text, or a special token with the bytes of its text.
struct TextPiece {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::int32_t token = kNoToken;  // kNoToken: plain text, not empty
};

class SpecialTokens {
 public:
  // `vocabulary` must outlive the object. Cost: O(bytes of the special tokens' texts).
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // Returns the pieces of `text` in order. Finds structure tokens only with kParse, other
  // user-defined tokens always. Cost: O(n) for a text without special tokens, else O(n) for each
  // one that occurs.
  std::vector<TextPiece> Cut(std::string_view text, SpecialText special) const;

  // Returns the user-defined tokens of shape kText (token_shape.h) that occur in one of a
  // template's `literals`, ascending. They are structure to that template.
  std::vector<std::int32_t> InLiterals(std::span<const std::string> literals) const;

  // As Cut with kParse, but finds structure tokens only where they touch no `foreign` range (in
  // order, disjoint). Structure tokens are cut out before all others, so that no other token takes
  // bytes of them. Here the tokens of `in_literals` (from InLiterals) are structure too, and so are
  // user-defined tokens of shape kText that occur in `text` outside the foreign ranges.
  // Cost: as Cut, and O(foreign ranges) for each token that occurs.
  std::vector<TextPiece> CutMarked(std::string_view text, std::span<const TextRange> foreign,
                                   std::span<const std::int32_t> in_literals) const;

 private:
  using Node = std::uint32_t;  // 0: the root, or no node
  static constexpr std::uint32_t kNoPattern = ~std::uint32_t{0};

  struct Edge {
    std::uint64_t key = 0;  // node << 8 | byte, plus 1; 0: free
    Node to = 0;
    bool IsFree() const { return key == 0; }
  };
  struct HasKey {
    std::uint64_t key;
    bool operator()(const Edge& edge) const { return edge.key == key; }
  };

  void AddPattern(std::uint32_t pattern, std::string_view text);
  void Link();
  Node Child(Node node, std::uint8_t byte) const;
  Node AddChild(Node node, std::uint8_t byte);
  Node Step(Node node, std::uint8_t byte) const;

  std::vector<std::uint32_t> Occurring(std::string_view text) const;
  std::int32_t TokenOf(std::uint32_t pattern) const {
    return vocabulary_.special_tokens()[pattern];
  }
  void Report(Node node, std::vector<bool>* seen, std::vector<std::uint32_t>* found) const;
  bool IsStructureIn(std::string_view text, std::span<const TextRange> foreign,
                     std::int32_t token) const;
  void CutAt(std::string_view text, std::int32_t token, std::span<const TextRange> foreign,
             std::vector<TextPiece>* pieces) const;

  const Vocabulary& vocabulary_;
  std::array<Node, 256> root_{};        // children of the root, by byte
  OpenHashTable<Edge> edges_;           // all other edges
  std::vector<std::uint32_t> pattern_;  // by node: index into special_tokens(), or none
  std::vector<Node> parent_;            // by node
  std::vector<std::uint8_t> byte_;      // by node: byte of the edge that leads to it
  std::vector<Node> suffix_;            // by node: longest proper suffix in the tree
  std::vector<Node> reported_;          // by node: itself or its longest suffix with a pattern
};

}  // namespace kvcache
