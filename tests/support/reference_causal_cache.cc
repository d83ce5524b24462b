#include "support/reference_causal_cache.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvcache::testing {

std::int64_t ReferenceCausalCache::UsedCells(const std::vector<Sequence>& sequences) {
  std::set<const ReferenceToken*> tokens;
  for (const Sequence& sequence : sequences) {
    for (const auto& [position, token] : sequence) tokens.insert(token.get());
  }
  return static_cast<std::int64_t>(tokens.size());
}

Position ReferenceCausalCache::length(int sequence) const {
  const Sequence& tokens = sequences_[sequence];
  return tokens.empty() ? 0 : tokens.rbegin()->first + 1;
}

bool ReferenceCausalCache::MayBegin(const TestBatch& batch) const {
  const std::vector<TestToken>& tokens = batch.tokens;
  if (tokens.empty() || tokens.size() > static_cast<std::size_t>(options_.max_batch)) return false;
  return AreTrees(batch) && std::all_of(tokens.begin(), tokens.end(), [&](const TestToken& token) {
           return Known(token.sequence) && token.position >= 0 && token.position != kEndOfSequence;
         });
}

// Checks that the positions are free or, for roots of drafts, at the ends of their sequences.
bool ReferenceCausalCache::MayAdd(const TestBatch& batch) const {
  std::set<std::pair<int, Position>> added;
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const TestToken& token = batch.tokens[i];
    if (!transactions_.MayWrite(token)) return false;
    if (!batch.parents.empty()) {
      if (batch.parents[i] == -1 && token.position != length(token.sequence)) return false;
      continue;
    }
    if (sequences_[token.sequence].count(token.position) != 0) return false;
    if (!added.insert({token.sequence, token.position}).second) return false;
  }
  return true;
}

std::vector<int> ReferenceCausalCache::drafts() const {
  std::vector<int> sequences;
  for (const Query& query : queries_) {
    if (drafting_) sequences.push_back(query.sequence);
  }
  return sequences;
}

// Returns the sequences without the tokens that no query can need.
std::vector<ReferenceCausalCache::Sequence> ReferenceCausalCache::AfterEviction(
    const std::vector<TestToken>& batch) const {
  std::vector<Sequence> kept = sequences_;
  if (options_.retained_tokens == 0) return kept;
  for (int s = 0; s < options_.sequences; ++s) {
    if (transactions_.Has(s)) continue;
    Position next = length(s);
    bool in_batch = false;
    for (const TestToken& token : batch) {
      if (token.sequence != s) continue;
      next = in_batch ? std::min(next, token.position) : token.position;
      in_batch = true;
    }
    std::erase_if(kept[s], [&](const auto& entry) {
      return entry.first <= std::int64_t{next} - options_.retained_tokens;
    });
  }
  return kept;
}

StatusCode ReferenceCausalCache::Prepare(const TestBatch& batch, ForwardMode mode) const {
  if (!MayBegin(batch)) return StatusCode::kInvalidArgument;
  if (mode == ForwardMode::kReserve) return StatusCode::kOk;
  if (!MayAdd(batch)) return StatusCode::kInvalidArgument;
  const std::int64_t used = UsedCells(AfterEviction(batch.tokens));
  const auto more = static_cast<std::int64_t>(batch.tokens.size());
  return used + more > options_.cells ? StatusCode::kCacheFull : StatusCode::kOk;
}

void ReferenceCausalCache::Begin(const TestBatch& batch, ForwardMode mode) {
  EndPass();
  queries_.clear();
  in_pass_ = true;
  reserving_ = mode == ForwardMode::kReserve;
  drafting_ = !reserving_ && !batch.parents.empty();
  if (!reserving_) sequences_ = AfterEviction(batch.tokens);
  for (std::size_t i = 0; i < batch.tokens.size(); ++i) {
    const TestToken& token = batch.tokens[i];
    queries_.push_back({token.sequence, token.position});
    if (reserving_) continue;
    auto made = std::make_shared<ReferenceToken>();
    made->layers.resize(options_.layers);
    if (drafting_) {
      std::vector<int>& path = queries_.back().path;
      if (batch.parents[i] >= 0) path = queries_[batch.parents[i]].path;
      path.push_back(static_cast<int>(i));
    } else {
      sequences_[token.sequence][token.position] = made;
    }
    batch_.push_back(std::move(made));
  }
}

void ReferenceCausalCache::Accept(const std::vector<int>& last) {
  for (const int token : last) {
    for (const int draft : queries_[token].path) {
      sequences_[queries_[draft].sequence][queries_[draft].position] = batch_[draft];
    }
  }
  EndPass();
}

void ReferenceCausalCache::SetNonCausal(const std::vector<int>& queries) {
  for (Query& query : queries_) query.bidirectional = false;
  for (const int query : queries) queries_[query].bidirectional = true;
}

bool ReferenceCausalCache::Sees(const Query& query, Position position) const {
  if (position > query.position && !query.bidirectional) return false;
  if (options_.window > 0 && position <= query.position - options_.window) return false;
  return options_.chunk == 0 || position / options_.chunk >= query.position / options_.chunk;
}

std::map<Position, const ReferenceToken*> ReferenceCausalCache::TokensOf(const Query& query) const {
  std::map<Position, const ReferenceToken*> tokens;
  for (const auto& [position, token] : sequences_[query.sequence]) tokens[position] = token.get();
  for (const int draft : query.path) tokens[queries_[draft].position] = batch_[draft].get();
  return tokens;
}

void ReferenceCausalCache::Put(int layer,
                               const std::vector<std::optional<ReferenceContent>>& contents) {
  for (std::size_t i = 0; i < batch_.size(); ++i) batch_[i]->layers[layer] = contents[i];
}

void ReferenceCausalCache::EndPass() {
  in_pass_ = false;
  drafting_ = false;
  batch_.clear();
}

StatusCode ReferenceCausalCache::CheckCopy(int src, int dst, Position length) const {
  return Known(src) && Known(dst) && length >= 0 && !transactions_.Has(dst)
             ? StatusCode::kOk
             : StatusCode::kInvalidArgument;
}

void ReferenceCausalCache::Copy(int src, int dst, Position length) {
  EndPass();
  Sequence shared;
  for (const auto& [position, token] : sequences_[src]) {
    if (position < length) shared[position] = token;
  }
  sequences_[dst] = std::move(shared);
  late_[dst] = late_[src] && !(src == dst && sequences_[dst].empty());
}

void ReferenceCausalCache::Replace(int sequence, Sequence tokens, bool late) {
  EndPass();
  sequences_[sequence] = std::move(tokens);
  late_[sequence] = late;
}

std::int64_t ReferenceCausalCache::CellsWith(const std::vector<Sequence>& sequences,
                                             const Sequence& more) const {
  std::vector<Sequence> all = sequences;
  all.push_back(more);
  return UsedCells(all);
}

StatusCode ReferenceCausalCache::CheckRemove(int sequence, Position begin, Position end) const {
  if (!Known(sequence) || begin < 0 || end < begin || transactions_.Has(sequence)) {
    return StatusCode::kInvalidArgument;
  }
  if (begin == end || end >= length(sequence)) return StatusCode::kOk;
  if (!options_.can_shift) return StatusCode::kUnsupported;
  std::int64_t needed = 0;
  for (const auto& [position, token] : sequences_[sequence]) {
    int sharers = 0;
    for (const Sequence& other : sequences_) {
      sharers += std::any_of(other.begin(), other.end(),
                             [&](const auto& entry) { return entry.second == token; });
    }
    needed += position >= end && sharers > 1;
  }
  return needed > options_.cells - UsedCells(sequences_) ? StatusCode::kCacheFull : StatusCode::kOk;
}

void ReferenceCausalCache::Remove(int sequence, Position begin, Position end,
                                  const RotateKeys& rotate) {
  EndPass();
  Sequence& tokens = sequences_[sequence];
  if (begin == end && end < length(sequence)) return;
  Sequence result;
  for (auto& [position, token] : tokens) {
    if (position < begin) result[position] = token;
    if (position < end || end >= length(sequence)) continue;
    Token moved = std::make_shared<ReferenceToken>(*token);  // a private copy
    for (std::size_t layer = 0; layer < moved->layers.size(); ++layer) {
      if (moved->layers[layer].has_value()) rotate(static_cast<int>(layer), *moved->layers[layer]);
    }
    result[position - (end - begin)] = std::move(moved);
  }
  tokens = std::move(result);
  if (tokens.empty()) late_[sequence] = false;
}

void ReferenceCausalCache::Evict(int sequence) {
  EndPass();
  const Position next = length(sequence);
  std::erase_if(sequences_[sequence], [&](const auto& entry) {
    return options_.retained_tokens > 0 && entry.first + 1 < next &&
           entry.first <= std::int64_t{next} - options_.retained_tokens;
  });
}

StatusCode ReferenceCausalCache::CheckTransaction(const std::vector<SequenceLength>& members,
                                                  Position max_tokens) const {
  const auto length_of = [&](int sequence) { return length(sequence); };
  const StatusCode code = transactions_.CheckBegin(members, max_tokens, length_of);
  if (code != StatusCode::kOk) return code;
  const std::int64_t needed = std::int64_t{max_tokens} * static_cast<std::int64_t>(members.size());
  return Fits(needed) || UsedCells(AfterEviction({})) + needed <= options_.cells
             ? StatusCode::kOk
             : StatusCode::kCacheFull;
}

void ReferenceCausalCache::BeginTransaction(const std::vector<SequenceLength>& members,
                                            Position max_tokens) {
  EndPass();
  const std::int64_t needed = std::int64_t{max_tokens} * static_cast<std::int64_t>(members.size());
  if (!Fits(needed)) sequences_ = AfterEviction({});
  transactions_.Begin(members, max_tokens);
  for (const auto& [id, length] : members) saved_[Index(id)] = sequences_[Index(id)];
}

StatusCode ReferenceCausalCache::CheckCommit(const std::vector<SequenceLength>& kept) const {
  return transactions_.CheckCommit(kept, [&](int sequence) { return length(sequence); });
}

void ReferenceCausalCache::EndTransaction(const std::vector<SequenceLength>& kept) {
  EndPass();
  for (const auto& [id, length] : kept) {
    Sequence result = saved_[Index(id)];
    for (const auto& [position, token] : sequences_[Index(id)]) {
      if (position < length) result.emplace(position, token);
    }
    sequences_[Index(id)] = std::move(result);
    if (sequences_[Index(id)].empty()) late_[Index(id)] = false;
    saved_.erase(Index(id));
  }
  transactions_.End(kept);
}

bool ReferenceCausalCache::CanResume(int sequence, Position position) const {
  if (!Known(sequence) || position < 0 || position > length(sequence)) return false;
  const bool keeps_everything = options_.retained_tokens == 0 && !late_[sequence];
  if (keeps_everything || sequences_[sequence].empty()) return true;
  return sequences_[sequence].begin()->first <= std::max(0, position - options_.window + 1);
}

}  // namespace kvcache::testing
