#include "support/internal/encoder_reference.h"

#include <algorithm>
#include <string>
#include <utility>

namespace kvcache::testing {
namespace {

// Returns the content of the i-th token of an output.
std::uint32_t TokenContent(std::uint32_t content, int i) {
  return content * 64 + static_cast<std::uint32_t>(i);
}

}  // namespace

EncoderReference::EncoderReference(const ReferenceSetup& setup, int tokens)
    : setup_(setup),
      tokens_(tokens > 0 ? tokens : setup.options.capacity),
      outputs_(setup.options.max_sequences),
      positions_(setup.options.max_sequences),
      lengths_(setup.options.max_sequences),
      first_gone_(setup.options.max_sequences, kEndOfSequence),
      captures_(setup.options.max_sequences),
      transactions_(setup.options.max_sequences) {}

std::unique_ptr<Cache> EncoderReference::MakeCache(ReferenceBackend& /*backend*/) {
  auto cache = std::make_unique<EncoderCacheImpl>(EncoderOptions{tokens_});
  cache_ = cache.get();
  return cache;
}

bool EncoderReference::Known(int sequence) const {
  return sequence >= 0 && sequence < setup_.options.max_sequences;
}

StatusCode EncoderReference::Prepare(const TestBatch& batch, ForwardMode mode) const {
  const std::size_t size = batch.tokens.size();
  bool good =
      size > 0 && size <= static_cast<std::size_t>(setup_.options.max_batch) && AreTrees(batch);
  for (const TestToken& token : batch.tokens) {
    good = good && Known(token.sequence) && token.position >= 0 && token.position != kEndOfSequence;
    good = good && (mode == ForwardMode::kReserve || transactions_.MayWrite(token));
  }
  for (const int index : batch.items) {
    good = good && index >= 0 && static_cast<std::size_t>(index) < size;
  }
  return good ? StatusCode::kOk : StatusCode::kInvalidArgument;
}

StatusCode EncoderReference::CheckAccept(const std::vector<int>& last) const {
  return CheckAcceptedDrafts(drafts(), last);
}

StatusCode EncoderReference::CheckCopy(int src, int dst, Position length) const {
  return Known(src) && Known(dst) && length >= 0 && !transactions_.Has(dst)
             ? StatusCode::kOk
             : StatusCode::kInvalidArgument;
}

StatusCode EncoderReference::CheckRemove(int sequence, Position begin, Position end) const {
  return Known(sequence) && begin >= 0 && end >= begin && !transactions_.Has(sequence)
             ? StatusCode::kOk
             : StatusCode::kInvalidArgument;
}

// A token must see the newest output before it, which must be the current one or none.
bool EncoderReference::CanResume(int sequence, Position position) const {
  if (!Known(sequence) || position < 0) return false;
  const bool sees = outputs_[sequence] != nullptr && positions_[sequence] < position;
  return sees || position <= first_gone_[sequence];
}

bool EncoderReference::CanGoBackTo(int sequence, Position length) const {
  return CanResume(sequence, length);
}

void EncoderReference::NoteGone(int sequence) {
  if (outputs_[sequence] == nullptr || positions_[sequence] >= notes_[sequence]) return;
  first_gone_[sequence] = std::min(first_gone_[sequence], positions_[sequence]);
}

void EncoderReference::Begin(const TestBatch& batch, ForwardMode mode) {
  EndPass();
  in_pass_ = true;
  reserving_ = mode == ForwardMode::kReserve;
  if (!reserving_ && !batch.parents.empty()) drafts_ = batch.tokens;
  batch_sequences_.clear();
  notes_.clear();
  newest_item_.reset();
  for (const TestToken& token : batch.tokens) {
    batch_sequences_.push_back(token.sequence);
    const auto [note, is_new] = notes_.emplace(token.sequence, token.position);
    note->second = std::min(note->second, token.position);
    Position& length = lengths_[token.sequence];
    if (!reserving_ && drafts_.empty()) length = std::max(length, token.position + 1);
  }
  std::set<int> with_item;
  for (const int index : batch.items) {
    const TestToken& token = batch.tokens[index];
    Position& note = notes_[token.sequence];
    note =
        with_item.insert(token.sequence).second ? token.position : std::max(note, token.position);
  }
  if (!batch.items.empty()) {
    newest_item_ = batch.tokens[*std::max_element(batch.items.begin(), batch.items.end())].sequence;
  }
}

void EncoderReference::EndPass() {
  in_pass_ = false;
  drafts_.clear();
}

std::vector<int> EncoderReference::drafts() const {
  std::vector<int> sequences;
  for (const TestToken& draft : drafts_) sequences.push_back(draft.sequence);
  return sequences;
}

void EncoderReference::Accept(const std::vector<int>& last) {
  for (const int token : last) {
    lengths_[drafts_[token].sequence] =
        std::max(lengths_[drafts_[token].sequence], drafts_[token].position + 1);
  }
  EndPass();
}

// A pass of drafts has no outputs.
Status EncoderReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  if (!drafts_.empty()) return Status::Ok();
  std::set<int> put;
  for (const int index : batch.items) put.insert(batch.tokens[index].sequence);
  for (const TestToken& token : batch.tokens) {
    if (token.position == 0) put.insert(token.sequence);
  }
  const int chosen = newest_item_.value_or(batch_sequences_.front());
  for (const int sequence : put) {
    // The pass begins with one sequence selected.
    if (put.size() > 1 || sequence != chosen) {
      KVCACHE_RETURN_IF_ERROR(cache.Encoder()->SetSequence(SequenceId{sequence}));
    }
    const std::uint32_t content = batch.tokens.front().content * 8 + sequence;
    KVCACHE_RETURN_IF_ERROR(PutAll(cache, sequence, content, step));
  }
  return Status::Ok();
}

StatusCode EncoderReference::CheckTransaction(const std::vector<SequenceLength>& members,
                                              Position max_tokens) const {
  return transactions_.CheckBegin(members, max_tokens, [&](int s) { return lengths_[s]; });
}

void EncoderReference::BeginTransaction(const std::vector<SequenceLength>& members,
                                        Position max_tokens) {
  EndPass();
  transactions_.Begin(members, max_tokens);
}

StatusCode EncoderReference::CheckCommit(const std::vector<SequenceLength>& kept) const {
  return transactions_.CheckCommit(kept, [&](int s) { return lengths_[s]; });
}

void EncoderReference::Commit(const std::vector<SequenceLength>& kept) {
  EndPass();
  for (const auto& [id, length] : kept) {
    if (length < lengths_[Index(id)]) TruncateCaptures(Index(id), length);
    lengths_[Index(id)] = std::min(lengths_[Index(id)], length);
  }
  transactions_.End(kept);
}

Status EncoderReference::PutAll(Cache& cache, int sequence, std::uint32_t content,
                                const ScriptStep& step) {
  const int tokens = 1 + static_cast<int>(content % static_cast<unsigned>(tokens_));
  std::vector<TestToken> rows;
  for (int i = 0; i < tokens; ++i) rows.push_back({sequence, i, TokenContent(content, i)});
  bool first = true;
  for (int layer = 0; layer < kTestLayers; ++layer) {
    if (!PutsLayer(step, layer)) continue;
    const Status status = PutContents(cache, rows, layer, TestShape(layer));
    if (transactions_.Has(sequence) && !reserving_) {
      if (status.code() != StatusCode::kOutOfMemory) written_[layer] = true;
      if (status.code() == StatusCode::kOutOfMemory) return status;
      if (status.code() == StatusCode::kUnsupported) continue;
      return {StatusCode::kInternal, "Put of an output in a transaction: " + status.message()};
    }
    if (status.code() != StatusCode::kOutOfMemory) written_[layer] = true;
    if (first && !reserving_ && status.code() != StatusCode::kOutOfMemory) {
      CaptureBeforePut(sequence);
    }
    // No snapshot could be materialised, so that the output had no place.
    if (status.message().find("transfer") != std::string::npos) return status;
    if (first && !reserving_ && status.code() != StatusCode::kOutOfMemory) NoteGone(sequence);
    if (!status.ok()) {
      // kOutOfMemory has changed nothing. A failed store leaves no output.
      if (!reserving_ && status.code() != StatusCode::kOutOfMemory) outputs_[sequence] = nullptr;
      return status;
    }
    if (reserving_) continue;
    if (first) {  // replaces the output; sequences that share the old one keep it
      outputs_[sequence] = std::make_shared<Output>();
    }
    first = false;
    outputs_[sequence]->tokens = tokens;
    outputs_[sequence]->content[layer] = content;
    positions_[sequence] = notes_[sequence];
  }
  return Status::Ok();
}

void EncoderReference::Copy(int src, int dst, Position length) {
  EndPass();
  const bool shares = outputs_[src] != nullptr && positions_[src] < length;
  outputs_[dst] = shares ? outputs_[src] : nullptr;
  first_gone_[dst] = first_gone_[src] < length ? first_gone_[src] : kEndOfSequence;
  positions_[dst] = positions_[src];
  lengths_[dst] = std::min(lengths_[src], length);
  if (src == dst) {
    TruncateCaptures(dst, length);
  } else {
    captures_[dst] = {};
  }
}

void EncoderReference::Remove(int sequence, Position begin, Position end) {
  EndPass();
  if (end >= lengths_[sequence]) {
    TruncateCaptures(sequence, begin);
  } else if (begin < end) {
    captures_[sequence] = {};
  }
  Position& gone = first_gone_[sequence];
  if (gone != kEndOfSequence && gone >= begin) {
    gone = end == kEndOfSequence ? kEndOfSequence : std::max(begin, gone - (end - begin));
  }
  Position& position = positions_[sequence];
  if (outputs_[sequence] != nullptr && position >= begin) {
    if (position < end) {
      outputs_[sequence] = nullptr;
    } else {
      position -= end - begin;
    }
  }
  Position& length = lengths_[sequence];
  if (length > begin) length = length > end ? length - (end - begin) : begin;
}

unsigned EncoderReference::coverage() const {
  std::set<const Output*> distinct;
  int all = 0;
  for (const Shared& output : outputs_) {
    if (output == nullptr) continue;
    ++all;
    distinct.insert(output.get());
  }
  return all > static_cast<int>(distinct.size()) ? kCoverShared : 0u;
}

Difference EncoderReference::Check() {
  if (Difference difference = CheckMetadata()) return difference;
  const Visibility& visible = cache_->Visible();
  if (visible.positions.size() != (in_pass_ ? batch_sequences_.size() : 0)) {
    return "Visible has " + std::to_string(visible.positions.size()) + " queries";
  }
  for (std::size_t query = 0; query < visible.positions.size(); ++query) {
    if (Difference difference = CheckQuery(query)) {
      return "encoder, query " + std::to_string(query) + ": " + *difference;
    }
  }
  return {};
}

Difference EncoderReference::CheckMetadata() const {
  std::set<const Output*> distinct;
  for (int s = -1; s <= setup_.options.max_sequences; ++s) {
    const bool cached = Known(s) && outputs_[s] != nullptr;
    if (cached) distinct.insert(outputs_[s].get());
    if (cache_->EncoderCached(SequenceId{s}) != cached) {
      return "EncoderCached differs for sequence " + std::to_string(s);
    }
  }
  const auto free = static_cast<std::size_t>(cache_->entries().free_cells());
  // Snapshots may keep further outputs.
  if (snapshots_ ? free + distinct.size() > outputs_.size()
                 : free + distinct.size() != outputs_.size()) {
    return std::to_string(free) + " outputs are free, " + std::to_string(distinct.size()) + " of " +
           std::to_string(outputs_.size()) + " are used";
  }
  return {};
}

Difference EncoderReference::CheckQuery(std::size_t query) {
  const Visibility& visible = cache_->Visible();
  const auto runs = visible.histories[visible.history_of_query[query]];
  if (visible.bidirectional.empty() || visible.bidirectional[query] == 0)
    return "the query is causal; must be bidirectional";
  if (visible.window != 0 || visible.chunk != 0) return "there is a window or a chunk";
  if (reserving_) {
    return runs.size() == 1 && runs[0].length == tokens_
               ? Difference()
               : "a reserving pass does not show the longest output";
  }
  const int sequence = batch_sequences_[query];
  const Output* output = outputs_[sequence].get();
  if (runs.empty() != (output == nullptr)) {
    return output == nullptr ? "the query sees an output; there is none"
                             : "the query does not see its sequence's output";
  }
  if (output != nullptr &&
      (runs.size() != 1 || runs[0].position != 0 || runs[0].length != output->tokens)) {
    return "the history is not one run of the output's tokens";
  }
  for (int layer = 0; layer < kTestLayers; ++layer) {
    if (!written_[layer]) continue;
    Difference difference =
        output != nullptr ? CheckLayer(layer, *output, runs[0].cell) : Difference();
    if (!difference.has_value()) difference = CheckGet(layer, sequence, output);
    if (difference.has_value()) return "layer " + std::to_string(layer) + ": " + *difference;
  }
  return {};
}

Difference EncoderReference::CheckLayer(int layer, const Output& output, std::int32_t first_cell) {
  if (output.content[layer] == 0) return {};
  cache_->SetLayer(layer);
  const auto storage = cache_->Storage();
  if (!storage.ok()) return "Storage: " + storage.status().message();
  for (int i = 0; i < output.tokens; ++i) {
    const std::uint32_t content = TokenContent(output.content[layer], i);
    const KvShape& shape = TestShape(layer);
    if (ReadKey(*storage, first_cell + i) !=
            RoundedAll(setup_.options.k_type, KeyContent(content, layer, shape)) ||
        ReadValue(*storage, first_cell + i) !=
            RoundedAll(ValueType(setup_, layer), ValueContent(content, layer, shape))) {
      return "token " + std::to_string(i) + " of the output differs";
    }
  }
  return {};
}

Difference EncoderReference::CheckGet(int layer, int sequence, const Output* output) {
  cache_->SetLayer(layer);
  if (!cache_->SetSequence(SequenceId{sequence}).ok()) return "SetSequence failed";
  const auto history = cache_->Get();
  if (setup_.config.layout != KvLayout::kPlain) {
    return history.status().code() == StatusCode::kUnsupported
               ? Difference()
               : "Get over the tiled layout returned another code than kUnsupported";
  }
  if (output == nullptr) {
    return history.status().code() == StatusCode::kNotFound
               ? Difference()
               : "Get without an output returned another code than kNotFound";
  }
  if (!history.ok()) return "Get: " + history.status().message();
  if (history->mask.data != nullptr) return "Get returned a mask; must return none";
  if (history->k.dims[2] != output->tokens) return "the size of a view differs";
  if (output->content[layer] == 0) return {};
  for (int i = 0; i < output->tokens; ++i) {
    const std::vector<float> key =
        RoundedAll(setup_.options.k_type,
                   KeyContent(TokenContent(output->content[layer], i), layer, TestShape(layer)));
    const std::vector<float> value =
        RoundedAll(ValueType(setup_, layer),
                   ValueContent(TokenContent(output->content[layer], i), layer, TestShape(layer)));
    if (KeyAt(*history, i, 0, 0) != key.front() ||
        ValueAt(*history, cache_->Storage()->v_transposed, i, 0, 0) != value.front()) {
      return "a view shows other values than the output's";
    }
  }
  return {};
}

}  // namespace kvcache::testing
