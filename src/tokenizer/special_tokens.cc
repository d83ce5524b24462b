#include "tokenizer/special_tokens.h"

#include <cstring>

#include <algorithm>

#include "tokenizer/token_shape.h"

namespace kvcache {
namespace {

// The C locale's isspace.
bool IsSpace(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// Returns the first position of `wanted` in [from, to) of `text`, or npos. Linear time:
// string_view::find is quadratic for "aa…ab" in "aa…a".
std::size_t FindIn(std::string_view text, std::size_t from, std::size_t to,
                   std::string_view wanted) {
  const void* at = memmem(text.data() + from, to - from, wanted.data(), wanted.size());
  if (at == nullptr) return std::string_view::npos;
  return static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

// As FindIn, but the match touches none of the `foreign` ranges (in order, disjoint). Searches each
// gap between the ranges once. To continue one byte after each match that touches a range would
// take O(text * wanted) for texts such as "====".
std::size_t FindOutside(std::span<const TextRange> foreign, std::string_view text, std::size_t from,
                        std::size_t to, std::string_view wanted) {
  auto range =
      std::upper_bound(foreign.begin(), foreign.end(), from,
                       [](std::size_t at, const TextRange& next) { return at < next.end; });
  for (std::size_t begin = from; begin + wanted.size() <= to; ++range) {
    const bool last = range == foreign.end();
    const std::size_t end = last ? to : std::min(range->begin, to);
    if (begin + wanted.size() <= end) {
      const std::size_t at = FindIn(text, begin, end, wanted);
      if (at != std::string_view::npos) return at;
    }
    if (last) break;
    begin = range->end;
  }
  return std::string_view::npos;
}

// Returns the key of an edge, not 0.
std::uint64_t EdgeKey(std::uint32_t node, std::uint8_t byte) {
  return (std::uint64_t{node} << 8 | byte) + 1;
}

std::uint64_t EdgeHash(std::uint64_t key) {
  return (key * 0x9E3779B97F4A7C15) >> 20;
}

// Returns whether a user-defined token with this text is structure to a template that writes it.
bool MayBeStructure(std::string_view text) {
  return ShapeOf(text) != TokenShape::kWords;
}

}  // namespace

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : vocabulary_(vocabulary) {
  std::size_t bytes = 0;
  for (const std::int32_t token : vocabulary.special_tokens()) {
    bytes += vocabulary.text(token).size();
  }
  edges_ = OpenHashTable<Edge>(bytes);
  pattern_.assign(1, kNoPattern);
  parent_.assign(1, 0);
  byte_.assign(1, 0);
  for (std::uint32_t i = 0; i < vocabulary.special_tokens().size(); ++i) {
    AddPattern(i, vocabulary.text(vocabulary.special_tokens()[i]));
  }
  Link();
}

void SpecialTokens::AddPattern(std::uint32_t pattern, std::string_view text) {
  Node node = 0;
  for (const char c : text) node = AddChild(node, static_cast<std::uint8_t>(c));
  pattern_[node] = pattern;
}

// Sets the suffix links, short nodes first: a node's suffix is shorter than the node.
void SpecialTokens::Link() {
  const std::size_t count = parent_.size();
  std::vector<std::uint32_t> depth(count, 0);
  std::vector<Node> order(count);
  for (Node node = 0; node < count; ++node) order[node] = node;
  // A parent has a lower number than its children.
  for (Node node = 1; node < count; ++node) depth[node] = depth[parent_[node]] + 1;
  std::stable_sort(order.begin(), order.end(), [&](Node a, Node b) { return depth[a] < depth[b]; });
  suffix_.assign(count, 0);
  reported_.assign(count, 0);
  for (const Node node : order) {
    if (node == 0) continue;
    if (parent_[node] != 0) suffix_[node] = Step(suffix_[parent_[node]], byte_[node]);
    reported_[node] = pattern_[node] != kNoPattern ? node : reported_[suffix_[node]];
  }
}

SpecialTokens::Node SpecialTokens::Child(Node node, std::uint8_t byte) const {
  if (node == 0) return root_[byte];
  const std::uint64_t key = EdgeKey(node, byte);
  return edges_.Find(EdgeHash(key), HasKey{key}).to;
}

SpecialTokens::Node SpecialTokens::AddChild(Node node, std::uint8_t byte) {
  if (const Node child = Child(node, byte); child != 0) return child;
  const auto child = static_cast<Node>(parent_.size());
  pattern_.push_back(kNoPattern);
  parent_.push_back(node);
  byte_.push_back(byte);
  if (node == 0) {
    root_[byte] = child;
  } else {
    const std::uint64_t key = EdgeKey(node, byte);
    edges_.Find(EdgeHash(key), HasKey{key}) = {key, child};
  }
  return child;
}

// Returns the longest suffix of node + byte that is in the tree.
SpecialTokens::Node SpecialTokens::Step(Node node, std::uint8_t byte) const {
  for (;; node = suffix_[node]) {
    const Node child = Child(node, byte);
    if (child != 0 || node == 0) return child;
  }
}

void SpecialTokens::Report(Node node, std::vector<bool>* seen,
                           std::vector<std::uint32_t>* found) const {
  for (node = reported_[node]; node != 0; node = reported_[suffix_[node]]) {
    const std::uint32_t pattern = pattern_[node];
    if (seen->empty()) seen->resize(vocabulary_.special_tokens().size());
    if ((*seen)[pattern]) return;  // its suffixes were reported with it
    (*seen)[pattern] = true;
    found->push_back(pattern);
  }
}

// Returns the special tokens that occur in `text`, as ascending indices.
std::vector<std::uint32_t> SpecialTokens::Occurring(std::string_view text) const {
  std::vector<std::uint32_t> found;
  std::vector<bool> seen;
  Node node = 0;
  for (const char c : text) {
    const auto byte = static_cast<std::uint8_t>(c);
    node = node == 0 ? root_[byte] : Step(node, byte);
    if (reported_[node] != 0) Report(node, &seen, &found);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Cuts `token` out of the pieces of plain text, except where it touches a range of `foreign`.
void SpecialTokens::CutAt(std::string_view text, std::int32_t token,
                          std::span<const TextRange> foreign,
                          std::vector<TextPiece>* pieces) const {
  const std::string_view wanted = vocabulary_.text(token);
  std::vector<TextPiece> result;
  for (const TextPiece& piece : *pieces) {
    std::size_t from = piece.begin;
    while (piece.token == kNoToken && from < piece.end) {
      const std::size_t at = FindOutside(foreign, text, from, piece.end, wanted);
      if (at == std::string_view::npos) break;
      std::size_t left = at;
      std::size_t right = at + wanted.size();
      while (vocabulary_.StripsBefore(token) && left > from && IsSpace(text[left - 1])) --left;
      if (left > from) result.push_back({from, left, kNoToken});
      result.push_back({at, right, token});
      while (vocabulary_.StripsAfter(token) && right < piece.end && IsSpace(text[right])) ++right;
      from = right;
    }
    if (piece.token != kNoToken) {
      result.push_back(piece);
    } else if (from < piece.end) {
      result.push_back({from, piece.end, kNoToken});
    }
  }
  pieces->swap(result);
}

std::vector<TextPiece> SpecialTokens::Cut(std::string_view text, SpecialText special) const {
  std::vector<TextPiece> pieces;
  if (text.empty()) return pieces;
  pieces.push_back({0, text.size(), kNoToken});
  for (const std::uint32_t pattern : Occurring(text)) {
    const std::int32_t token = TokenOf(pattern);
    if (special == SpecialText::kPlain && vocabulary_.IsStructure(token)) continue;
    CutAt(text, token, {}, &pieces);
  }
  return pieces;
}

std::vector<std::int32_t> SpecialTokens::InLiterals(std::span<const std::string> literals) const {
  std::vector<std::int32_t> tokens;
  for (const std::string& literal : literals) {
    for (const std::uint32_t pattern : Occurring(literal)) {
      const std::int32_t token = TokenOf(pattern);
      if (!vocabulary_.IsStructure(token) && MayBeStructure(vocabulary_.text(token))) {
        tokens.push_back(token);
      }
    }
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

// Returns whether the template wrote `token` in `text`, which makes it structure there.
bool SpecialTokens::IsStructureIn(std::string_view text, std::span<const TextRange> foreign,
                                  std::int32_t token) const {
  const std::string_view wanted = vocabulary_.text(token);
  return MayBeStructure(wanted) &&
         FindOutside(foreign, text, 0, text.size(), wanted) != std::string_view::npos;
}

std::vector<TextPiece> SpecialTokens::CutMarked(std::string_view text,
                                                std::span<const TextRange> foreign,
                                                std::span<const std::int32_t> in_literals) const {
  if (foreign.empty()) return Cut(text, SpecialText::kParse);
  std::vector<TextPiece> pieces;
  pieces.push_back({0, text.size(), kNoToken});
  std::vector<std::int32_t> texts;
  for (const std::uint32_t pattern : Occurring(text)) {
    const std::int32_t token = TokenOf(pattern);
    if (vocabulary_.IsStructure(token) ||
        std::binary_search(in_literals.begin(), in_literals.end(), token) ||
        IsStructureIn(text, foreign, token)) {
      CutAt(text, token, foreign, &pieces);
    } else {
      texts.push_back(token);
    }
  }
  for (const std::int32_t token : texts) CutAt(text, token, {}, &pieces);
  return pieces;
}

}  // namespace kvcache
