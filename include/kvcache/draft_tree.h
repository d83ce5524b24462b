// Drafts that follow a text: a chain of tokens, or a tree with alternatives.
//
// Thread safety: values; as thread-safe as a std::vector.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcache {

struct DraftTree {
  std::vector<std::int32_t> tokens{};
  // [tokens]: the index of the draft that each one follows, lower than its own; -1: it follows the text.
  // Drafts with the same parent are alternatives and have different tokens.
  std::vector<std::int32_t> parents{};

  std::size_t size() const { return tokens.size(); }
  bool empty() const { return tokens.empty(); }
  void Clear() {
    tokens.clear();
    parents.clear();
  }
  // Adds a draft and returns its index; if there is one with this parent and token, returns that.
  std::int32_t Add(std::int32_t parent, std::int32_t token) {
    if (const std::int32_t child = Find(parent, token); child >= 0) return child;
    tokens.push_back(token);
    parents.push_back(parent);
    return static_cast<std::int32_t>(size()) - 1;
  }
  // Returns the draft with this parent and token, or -1.
  std::int32_t Find(std::int32_t parent, std::int32_t token) const {
    for (auto i = static_cast<std::size_t>(parent + 1); i < size(); ++i) {
      if (parents[i] == parent && tokens[i] == token) return static_cast<std::int32_t>(i);
    }
    return -1;
  }
  bool IsChain() const {
    for (std::size_t i = 0; i < size(); ++i) {
      if (parents[i] != static_cast<std::int32_t>(i) - 1) return false;
    }
    return true;
  }
  // Makes each draft follow the one before it.
  void MakeChain() {
    parents.resize(size());
    for (std::size_t i = 0; i < size(); ++i) parents[i] = static_cast<std::int32_t>(i) - 1;
  }
  // Returns the number of drafts from the text to this one, at least 1; 0 for -1.
  int Depth(std::int32_t draft) const {
    int depth = 0;
    for (; draft >= 0; draft = parents[static_cast<std::size_t>(draft)]) ++depth;
    return depth;
  }
  // Keeps the first drafts.
  void Resize(std::size_t count) {
    tokens.resize(std::min(count, size()));
    parents.resize(tokens.size());
  }
  // Keeps at most `most` of the first drafts, up to one that is no token of the vocabulary, or that follows
  // none before it.
  void KeepValid(std::size_t most, std::int32_t vocabulary) {
    parents.resize(size(), -2);
    std::size_t valid = 0;
    while (valid < std::min(most, size()) && tokens[valid] >= 0 && tokens[valid] < vocabulary &&
           parents[valid] >= -1 && parents[valid] < static_cast<std::int32_t>(valid)) {
      ++valid;
    }
    Resize(valid);
  }
  // Keeps the path of first alternatives, and so makes it a chain.
  void KeepFirstPath() {
    std::size_t kept = 0;
    std::int32_t last = -1;
    for (std::size_t i = 0; i < size(); ++i) {
      if (parents[i] != last) continue;
      last = static_cast<std::int32_t>(i);
      tokens[kept++] = tokens[i];
    }
    Resize(kept);
    MakeChain();
  }
};

}  // namespace kvcache
