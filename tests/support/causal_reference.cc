#include "support/causal_reference.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include "support/visibility_rule.h"

namespace kvcache::testing {
namespace {

constexpr float kInvFreq[] = {0.75f, 0.125f};

// A different rotation for each layer.
RopeParams RopeOf(int layer) {
  RopeParams rope;
  rope.pairing = layer == 0 ? RopeParams::Pairing::kInterleaved : RopeParams::Pairing::kHalves;
  const KvShape& shape = TestShape(layer);
  rope.first = shape.v_in_k ? shape.v_dim : 0;
  rope.dims = shape.k_dim - rope.first;
  rope.inv_freq = std::span(kInvFreq).first(rope.dims / 2);
  return rope;
}

// Rotates a key as the cache's shift function does, head by head.
void RotateContent(int layer, DType type, Position offset, ReferenceContent& content) {
  const int dim = TestShape(layer).k_dim;
  for (int head = 0; head < TestShape(layer).kv_heads; ++head) {
    RotateKey(std::span(content.key).subspan(head * dim, dim), offset, RopeOf(layer));
  }
  content.key = RoundedAll(type, std::move(content.key));
}

std::int64_t RoundUpTo(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Computes the retained tokens by the rule in kvcache/causal_cache.h; 0: everything.
std::int32_t RetainedTokens(const CacheOptions& options, const CausalReferenceOptions& causal) {
  if (causal.window == 0) return 0;
  int retained = causal.retained_tokens == 0 ? causal.window : causal.retained_tokens;
  if (options.max_sequences > 1) retained = std::max(retained, causal.window + 1);
  return retained >= options.capacity ? 0 : retained;
}

std::int64_t CellsOf(const ReferenceSetup& setup, std::int32_t retained) {
  const CacheOptions& options = setup.options;
  const std::int64_t sequences = options.max_sequences;
  const std::int64_t cells =
      retained == 0 ? sequences * options.capacity : sequences * retained + options.max_batch;
  return RoundUpTo(cells, setup.config.cell_padding);
}

}  // namespace

std::string ToText(const CausalReferenceOptions& options) {
  std::ostringstream out;
  out << "causal";
  if (options.window > 0) out << ", window " << options.window;
  if (options.retained_tokens > 0) out << ", retained " << options.retained_tokens;
  if (options.chunk > 0) out << ", chunk " << options.chunk;
  if (!options.can_shift) out << ", no shift function";
  return out.str();
}

CausalReference::CausalReference(const ReferenceSetup& setup, const CausalReferenceOptions& causal)
    : setup_(setup),
      causal_(causal),
      retained_tokens_(RetainedTokens(setup.options, causal)),
      cells_(CellsOf(setup, retained_tokens_)),
      model_({.sequences = setup.options.max_sequences,
              .cells = cells_,
              .max_batch = setup.options.max_batch,
              .layers = kTestLayers,
              .can_shift = causal.can_shift,
              .window = causal.window,
              .retained_tokens = retained_tokens_,
              .chunk = causal.chunk}),
      captures_(setup.options.max_sequences) {}

CausalOptions CausalReference::Options(ReferenceBackend& backend) const {
  CausalOptions options{
      .window = causal_.window, .retained_tokens = causal_.retained_tokens, .chunk = causal_.chunk};
  if (causal_.can_shift) {
    options.shift_keys = [&backend](int layer, const LayerKv& storage,
                                    std::span<const CellRun> cells, Position offset) {
      return backend.ShiftKeys(storage, cells, offset, RopeOf(layer));
    };
  }
  return options;
}

std::unique_ptr<Cache> CausalReference::MakeCache(ReferenceBackend& backend) {
  auto cache = MakeCausalCache(Options(backend));
  cache_ = cache.get();
  return cache;
}

StatusCode CausalReference::Prepare(const TestBatch& batch, ForwardMode mode) const {
  const StatusCode code = model_.Prepare(batch, mode);
  if (code == StatusCode::kInvalidArgument) return code;
  for (const int index : batch.items) {
    if (index < 0 || static_cast<std::size_t>(index) >= batch.tokens.size()) {
      return StatusCode::kInvalidArgument;
    }
  }
  return code;
}

StatusCode CausalReference::CheckAccept(const std::vector<int>& last) const {
  return CheckAcceptedDrafts(model_.drafts(), last);
}

StatusCode CausalReference::CheckCopy(int src, int dst, Position length) const {
  return model_.CheckCopy(src, dst, length);
}

StatusCode CausalReference::CheckRemove(int sequence, Position begin, Position end) const {
  return model_.CheckRemove(sequence, begin, end);
}

bool CausalReference::CanResume(int sequence, Position position) const {
  return model_.CanResume(sequence, position);
}

bool CausalReference::CanGoBackTo(int sequence, Position length) const {
  return model_.CanResume(sequence, length);
}

void CausalReference::Begin(const TestBatch& batch, ForwardMode mode) {
  const std::vector<ReferenceCausalCache::Sequence> before = model_.all();
  model_.Begin(batch, mode);
  if (mode == ForwardMode::kReserve || !batch.parents.empty()) return;
  for (const TestToken& token : batch.tokens) Capture(token.sequence, before[token.sequence]);
}

void CausalReference::Accept(const std::vector<int>& last) {
  const std::vector<int> drafts = model_.drafts();
  model_.Accept(last);
  for (const int token : last) Capture(drafts[token], {});
}

void CausalReference::Copy(int src, int dst, Position length) {
  model_.Copy(src, dst, length);
  if (src == dst) {
    TruncateCaptures(dst, length);
  } else {
    captures_[dst] = {};
  }
}

void CausalReference::Remove(int sequence, Position begin, Position end) {
  if (end >= model_.length(sequence)) {
    TruncateCaptures(sequence, begin);
  } else if (begin < end) {
    captures_[sequence] = {};
  }
  model_.Remove(sequence, begin, end, [&](int layer, ReferenceContent& content) {
    RotateContent(layer, setup_.options.k_type, begin - end, content);
  });
}

void CausalReference::Commit(const std::vector<SequenceLength>& kept) {
  for (const auto& [id, length] : kept) {
    took_back_ = took_back_ || length < model_.length(Index(id));
    TruncateCaptures(Index(id), length);
  }
  model_.EndTransaction(kept);
}

Status CausalReference::RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) {
  for (int layer = 0; layer < kTestLayers; ++layer) {
    if (PutsLayer(step, layer)) KVCACHE_RETURN_IF_ERROR(PutLayer(cache, batch.tokens, layer));
  }
  return Status::Ok();
}

Status CausalReference::PutLayer(Cache& cache, const std::vector<TestToken>& tokens, int layer) {
  const KvShape& shape = TestShape(layer);
  const Status status = PutContents(cache, tokens, layer, shape);
  std::vector<std::optional<ReferenceContent>> contents(tokens.size());
  for (std::size_t i = 0; i < tokens.size() && status.ok(); ++i) {
    const std::uint32_t content = tokens[i].content;
    contents[i] = {RoundedAll(setup_.options.k_type, KeyContent(content, layer, shape)),
                   RoundedAll(ValueType(setup_, layer), ValueContent(content, layer, shape))};
  }
  model_.Put(layer, contents);
  // After kOutOfMemory the layer has no memory; after a failed store it has.
  if (status.code() != StatusCode::kOutOfMemory) written_[layer] = true;
  return status;
}

unsigned CausalReference::coverage() const {
  std::int64_t positions = 0;
  bool evicted = false;
  std::set<std::pair<int, Position>> drafted;
  bool forked = false;
  for (const ReferenceCausalCache::Query& query : model_.queries()) {
    if (query.path.empty()) continue;
    forked = forked || !drafted.insert({query.sequence, query.position}).second;
  }
  for (int s = 0; s < model_.sequences(); ++s) {
    const ReferenceCausalCache::Sequence& tokens = model_.sequence(s);
    positions += static_cast<std::int64_t>(tokens.size());
    evicted = evicted || (retained_tokens_ > 0 &&
                          model_.length(s) > retained_tokens_ + setup_.options.max_batch);
  }
  return (positions > model_.used_cells() ? kCoverShared : 0u) |
         (model_.used_cells() == cells_ ? kCoverFull : 0u) | (evicted ? kCoverEvicted : 0u) |
         (forked ? kCoverForked : 0u) | (took_back_ ? kCoverBack : 0u);
}

Difference CausalReference::Check() {
  if (Difference difference = CheckInternals()) return difference;
  if (Difference difference = CheckAllocatedBytes()) return difference;
  return CheckPass();
}

Difference CausalReference::CheckAllocatedBytes() const {
  std::int64_t expected = 0;
  const std::int64_t cells = RoundUpTo(cells_, std::lcm(kCellTile, setup_.config.cell_padding));
  for (int layer = 0; layer < kTestLayers; ++layer) {
    if (!written_[layer]) continue;
    const KvShape& shape = TestShape(layer);
    expected += BytesOf(setup_.options.k_type, cells * shape.kv_heads * shape.k_dim);
    if (shape.v_in_k) continue;
    expected += BytesOf(setup_.options.v_type, cells * shape.kv_heads * shape.v_dim);
  }
  if (cache_->memory()->AllocatedBytes() == expected) return {};
  return "AllocatedBytes is " + std::to_string(cache_->memory()->AllocatedBytes()) + ", expected " +
         std::to_string(expected);
}

Difference CausalReference::CheckBytes(const LayerKv& storage, int layer, std::int32_t cell,
                                       const ReferenceToken& token) const {
  if (!token.layers[layer].has_value()) return {};
  const std::string where =
      " in cell " + std::to_string(cell) + " of layer " + std::to_string(layer);
  if (ReadKey(storage, cell) != token.layers[layer]->key) return "the key differs" + where;
  if (ReadValue(storage, cell) != token.layers[layer]->value) return "the value differs" + where;
  return {};
}

// Finds the cells of the tokens that query `i` must see, in its history. Equal tokens must have
// equal cells in all histories, and different tokens different cells.
Difference CausalReference::CheckHistory(std::size_t i) {
  const Visibility& visible = cache_->Visible();
  const ReferenceCausalCache::Query& query = model_.queries()[i];
  std::map<Position, std::int32_t> cell_of;
  for (const HistoryRun& run : visible.histories[visible.history_of_query[i]]) {
    for (int j = 0; j < run.length; ++j) {
      const bool first_time = cell_of.emplace(run.position + j, run.cell + j).second;
      if (!first_time) return "runs overlap";
    }
  }
  const std::map<Position, const ReferenceToken*> tokens = model_.TokensOf(query);
  if (query.path.empty() && cell_of.size() != tokens.size()) {
    return "the history of query " + std::to_string(i) + " has " + std::to_string(cell_of.size()) +
           " positions, expected " + std::to_string(tokens.size());
  }
  for (const auto& [position, token] : tokens) {
    const auto found = cell_of.find(position);
    if (found == cell_of.end()) return At(query.sequence, position) + " is missing";
    const std::int32_t cell = found->second;
    if (token_of_.emplace(cell, token).first->second != token ||
        cell_of_.emplace(token, cell).first->second != cell) {
      return At(query.sequence, position) + " is in cell " + std::to_string(cell) +
             "; exactly the copies of a token must share a cell";
    }
    if (model_.Sees(query, position)) expected_[i].push_back(cell);
  }
  std::sort(expected_[i].begin(), expected_[i].end());
  return {};
}

Difference CausalReference::CheckHistories() {
  token_of_.clear();
  cell_of_.clear();
  expected_.assign(model_.queries().size(), {});
  for (std::size_t i = 0; i < expected_.size(); ++i) {
    if (model_.reserving()) {  // every query sees every cell
      expected_[i].resize(cells_);
      std::iota(expected_[i].begin(), expected_[i].end(), 0);
    } else if (Difference difference = CheckHistory(i)) {
      return difference;
    }
  }
  for (const auto& [cell, token] : token_of_) {
    if (Difference difference = CheckLayers(cell, *token)) return difference;
  }
  return {};
}

Difference CausalReference::CheckLayers(std::int32_t cell, const ReferenceToken& token) const {
  for (int layer = 0; layer < kTestLayers; ++layer) {
    cache_->SetLayer(layer);
    const auto storage = cache_->Storage();
    if (storage.ok() != written_[layer]) {
      return "Storage of layer " + std::to_string(layer) +
             (written_[layer] ? " failed" : " succeeded before the layer was written");
    }
    if (!storage.ok()) continue;
    if (Difference difference = CheckBytes(*storage, layer, cell, token)) return difference;
  }
  return {};
}

Difference CausalReference::CheckPass() {
  const std::size_t queries = model_.in_pass() ? model_.queries().size() : 0;
  if (cache_->Visible().positions.size() != queries) {
    return "Visible has " + std::to_string(cache_->Visible().positions.size()) +
           " queries, expected " + std::to_string(queries);
  }
  if (model_.in_pass()) {
    if (Difference difference = CheckHistories()) return difference;
  }
  if (Difference difference = CheckClosedForm()) return difference;
  for (int layer = 0; layer < kTestLayers; ++layer) {
    if (!written_[layer]) continue;
    if (Difference difference = CheckViews(layer)) {
      return "layer " + std::to_string(layer) + ": " + *difference;
    }
  }
  return {};
}

Difference CausalReference::CheckClosedForm() const {
  const Visibility& visible = cache_->Visible();
  for (std::size_t i = 0; i < visible.positions.size(); ++i) {
    std::vector<std::int32_t> cells;
    for (const HistoryRun& run : visible.histories[visible.history_of_query[i]]) {
      for (int j = 0; j < run.length; ++j) {
        if (Sees(visible, i, run.position + j)) cells.push_back(run.cell + j);
      }
    }
    std::sort(cells.begin(), cells.end());
    if (cells != expected_[i]) {
      return "query " + std::to_string(i) + " sees other cells than the reference model";
    }
  }
  return {};
}

Difference CausalReference::CheckViews(int layer) {
  cache_->SetLayer(layer);
  auto history = cache_->Get();
  if (!model_.in_pass() || setup_.config.layout != KvLayout::kPlain) {
    const StatusCode expected =
        model_.in_pass() ? StatusCode::kUnsupported : StatusCode::kInvalidArgument;
    return history.status().code() == expected ? Difference() : "Get returned another code";
  }
  if (!history.ok()) return "Get: " + history.status().message();
  const LayerKv storage = *cache_->Storage();
  const std::int64_t cell_bytes =
      BytesOf(storage.k_type, storage.shape.kv_heads * storage.shape.k_dim);
  const std::int64_t first = history->first_cell;
  if (first != (history->k.data - storage.k) / cell_bytes) return "first_cell of Get differs";
  const std::int64_t padding = setup_.config.cell_padding;

  std::set<std::int32_t> seen;
  std::vector<std::string> rows;
  const std::int64_t columns = history->mask.dims[0];
  for (const std::vector<std::int32_t>& cells : expected_) {
    std::string row(columns, '.');
    for (const std::int32_t cell : cells) {
      seen.insert(cell);
      if (cell < first || cell >= first + columns) return "the views of Get lack a visible cell";
      row[cell - first] = '0';
    }
    rows.push_back(row);
  }
  while (rows.size() % setup_.config.batch_padding != 0) rows.emplace_back(columns, '.');
  if (MaskRows(history->mask) != rows) return "the mask differs";
  if (first != *seen.begin() / padding * padding ||
      first + columns != RoundUpTo(*seen.rbegin() + 1, padding)) {
    return "the views of Get show cells [" + std::to_string(first) + ", " +
           std::to_string(first + columns) + "), not the smallest padded range of visible cells";
  }
  const int along = storage.v_transposed ? 0 : 2;
  if (history->k.dims[2] != columns || history->v.dims[along] != columns) {
    return "the size of a view differs";
  }
  for (const std::int32_t cell : seen) {
    std::vector<float> key;
    std::vector<float> value;
    for (int head = 0; head < storage.shape.kv_heads; ++head) {
      for (int d = 0; d < storage.shape.k_dim; ++d) {
        key.push_back(KeyAt(*history, cell - first, head, d));
      }
      for (int d = 0; d < storage.shape.v_dim; ++d) {
        value.push_back(ValueAt(*history, storage.v_transposed, cell - first, head, d));
      }
    }
    // CheckHistories has compared the storage with the reference model.
    if (key != ReadKey(storage, cell) || value != ReadValue(storage, cell)) {
      return "a view shows other bytes for cell " + std::to_string(cell);
    }
  }
  return {};
}

}  // namespace kvcache::testing
