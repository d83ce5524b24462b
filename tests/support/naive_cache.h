// A causal cache by definition: every token is an object that sequences point to.
//
// Nothing here is clever. A sequence is a map from position to token; a token knows its key and
// value in each layer, as they are after rounding and turning; a cell is used while some
// sequence points to its token. What the real cache does is compared with this.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "kvcache/cache.h"
#include "support/cache_harness.h"

namespace kvcache::testing {

// Key and value of a token in one layer; absent while nobody knows them, because the layer was
// not put or its put failed.
struct NaiveContent {
  std::vector<float> key;
  std::vector<float> value;
};

struct NaiveToken {
  std::vector<std::optional<NaiveContent>> layers;
};

class NaiveCache {
 public:
  using Token = std::shared_ptr<NaiveToken>;
  using Sequence = std::map<Position, Token>;

  struct Options {
    int sequences = 1;
    std::int64_t cells = 0;
    int max_batch = 1;
    int layers = 1;
    bool can_shift = true;
  };
  struct Query {
    int sequence = 0;
    Position position = 0;
  };

  explicit NaiveCache(const Options& options) : options_(options), sequences_(options.sequences) {}

  // Each call answers with the code that the real one must return, and changes nothing unless
  // that is kOk.
  StatusCode StartForward(const std::vector<TestToken>& batch, ForwardMode mode);
  StatusCode CopyPrefix(int src, int dst, Position length);
  // `turn` is applied to the content of every token that moves, once per layer that has one.
  template <typename Turn>
  StatusCode Remove(int sequence, Position begin, Position end, const Turn& turn);
  bool CanResume(int sequence, Position position) const;

  // The batch's tokens of the pass in progress now have this content; nullopt: unknown.
  void Put(int layer, const std::vector<std::optional<NaiveContent>>& contents);

  const Sequence& sequence(int index) const { return sequences_[index]; }
  int sequences() const { return options_.sequences; }
  std::int64_t used_cells() const;
  Position length(int sequence) const;

  bool in_pass() const { return in_pass_; }
  bool reserving() const { return reserving_; }
  const std::vector<Query>& queries() const { return queries_; }

 private:
  bool Known(int sequence) const { return sequence >= 0 && sequence < options_.sequences; }
  bool MayBegin(const std::vector<TestToken>& batch) const;
  StatusCode CheckMiddle(int sequence, Position end) const;
  void EndPass() { in_pass_ = false; }

  Options options_;
  std::vector<Sequence> sequences_;
  std::vector<Token> batch_;  // of the pass in progress, empty when reserving
  std::vector<Query> queries_;
  bool in_pass_ = false;
  bool reserving_ = false;
};

template <typename Turn>
StatusCode NaiveCache::Remove(int sequence, Position begin, Position end, const Turn& turn) {
  if (!Known(sequence) || begin < 0 || end < begin) return StatusCode::kInvalidArgument;
  batch_.clear();  // so that use_count() counts sequences
  Sequence& tokens = sequences_[sequence];
  const bool middle = begin < end && end < length(sequence);
  if (middle) {
    const StatusCode code = CheckMiddle(sequence, end);
    if (code != StatusCode::kOk) return code;
  }
  EndPass();
  if (begin == end && end < length(sequence)) return StatusCode::kOk;
  Sequence result;
  for (auto& [position, token] : tokens) {
    if (position < begin) result[position] = token;
    if (position < end || end >= length(sequence)) continue;
    Token moved = std::make_shared<NaiveToken>(*token);  // its own from now on
    for (std::size_t layer = 0; layer < moved->layers.size(); ++layer) {
      if (moved->layers[layer].has_value()) turn(static_cast<int>(layer), *moved->layers[layer]);
    }
    result[position - (end - begin)] = std::move(moved);
  }
  tokens = std::move(result);
  return StatusCode::kOk;
}

}  // namespace kvcache::testing
