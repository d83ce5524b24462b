#include "support/cache_driver.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

namespace kvcache::testing {
namespace {

constexpr KvShape kShapes[CacheDriver::kLayers] = {
    {.kv_heads = 2, .k_dim = 4, .v_dim = 3},
    {.kv_heads = 1, .k_dim = 2, .v_dim = 4},
    {.kv_heads = 3, .k_dim = 2, .v_dim = 1},
};
constexpr float kInvFreq[] = {0.75f, 0.125f};

// A different rotation for each layer.
RopeParams RopeOf(int layer) {
  RopeParams rope;
  rope.pairing = layer == 0 ? RopeParams::Pairing::kInterleaved : RopeParams::Pairing::kHalves;
  rope.dims = kShapes[layer].k_dim;
  rope.inv_freq = std::span(kInvFreq).first(rope.dims / 2);
  return rope;
}

std::vector<float> RoundedAll(DType type, std::vector<float> values) {
  for (float& value : values) value = Rounded(type, value);
  return values;
}

// Turned as the cache's shift function turns it, head by head.
void TurnContent(int layer, DType type, Position offset, NaiveContent& content) {
  const int dim = kShapes[layer].k_dim;
  for (int head = 0; head < kShapes[layer].kv_heads; ++head) {
    TurnKey(std::span(content.key).subspan(head * dim, dim), offset, RopeOf(layer));
  }
  content.key = RoundedAll(type, std::move(content.key));
}

std::string At(int sequence, Position position) {
  return "sequence " + std::to_string(sequence) + " position " + std::to_string(position);
}

std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::string CodeText(StatusCode code) {
  return std::string(StatusCodeName(code));
}

}  // namespace

std::int64_t DriverSetup::cells() const {
  return RoundUp(std::int64_t{options.max_sequences} * options.capacity, config.cell_padding);
}

std::string ToText(const DriverSetup& setup) {
  std::ostringstream out;
  out << setup.options.max_sequences << " sequences, capacity " << setup.options.capacity
      << ", max batch " << setup.options.max_batch << ", K " << InfoOf(setup.options.k_type).name
      << ", V " << InfoOf(setup.options.v_type).name << ", "
      << (setup.config.layout == KvLayout::kPlain ? "plain" : "tiled")
      << (setup.config.v_transposed ? ", V transposed" : "") << ", cell padding "
      << setup.config.cell_padding << ", batch padding " << setup.config.batch_padding << ", mask "
      << InfoOf(setup.config.mask_type).name << (setup.can_shift ? "" : ", no shift function");
  return out.str();
}

CacheDriver::CacheDriver(const DriverSetup& setup)
    : setup_(setup),
      naive_({.sequences = setup.options.max_sequences,
              .cells = setup.cells(),
              .max_batch = setup.options.max_batch,
              .layers = kLayers,
              .can_shift = setup.can_shift}) {
  CausalOptions options;
  if (setup.can_shift) {
    options.shift_keys = [this](int layer, const LayerKv& storage, std::span<const CellRun> cells,
                                Position offset) {
      return backend_.ShiftKeys(storage, cells, offset, RopeOf(layer));
    };
  }
  cache_ = std::make_unique<CausalCache>(std::move(options));
  Status status = cache_->SetConfig(setup.config);
  if (status.ok()) status = cache_->Init(backend_, setup.options);
  assert(status.ok());
}

std::optional<std::string> CacheDriver::Step(const ScriptStep& step) {
  backend_.FailNth(step.fail_call, step.fail_nth);
  StatusCode expected = StatusCode::kOk;
  Status status;
  switch (step.kind) {
    case ScriptStep::Kind::kForward:
      status = RunForward(step, ForwardMode::kCompute, expected);
      break;
    case ScriptStep::Kind::kReserve:
      status = RunForward(step, ForwardMode::kReserve, expected);
      break;
    case ScriptStep::Kind::kCopy:
      status = cache_->CopyPrefix(SequenceId{step.sequence}, SequenceId{step.target}, step.begin);
      expected = naive_.CopyPrefix(step.sequence, step.target, step.begin);
      break;
    case ScriptStep::Kind::kRemove: status = RunRemove(step, expected); break;
  }
  fired_ = step.fail_nth > 0 && !backend_.failure_pending();
  backend_.FailNth(step.fail_call, 0);
  if (Difference difference = CheckCall(status, expected)) return difference;
  if (fired_ && step.kind == ScriptStep::Kind::kRemove) {
    // The sequence is broken now, nothing else is; removing it whole always works.
    const ScriptStep whole{
        .kind = ScriptStep::Kind::kRemove, .sequence = step.sequence, .end = kEndOfSequence};
    StatusCode whole_expected = StatusCode::kOk;
    status = RunRemove(whole, whole_expected);
    if (!status.ok() || whole_expected != StatusCode::kOk) {
      return "removing the broken sequence: " + status.message();
    }
  }
  return CheckAll();
}

std::optional<std::string> CacheDriver::CheckCall(const Status& status, StatusCode expected) const {
  // What the backend was asked to refuse must come back as an error; else the naive one decides.
  if (fired_ && !status.ok() && status.code() != StatusCode::kInternal) return {};
  if (!fired_ && status.code() == expected) return {};
  return "returned " + CodeText(status.code()) + " (" + status.message() + "), expected " +
         (fired_ ? "an error" : CodeText(expected));
}

Status CacheDriver::RunForward(const ScriptStep& step, ForwardMode mode, StatusCode& expected) {
  std::vector<TestToken> tokens = step.tokens;
  for (TestToken& token : tokens) token.content = next_content_++;
  Status status = StartForward(*cache_, tokens, mode);
  expected = naive_.StartForward(tokens, mode);
  for (int layer = 0; layer < kLayers && status.ok() && expected == StatusCode::kOk; ++layer) {
    const auto& chosen = step.layers;
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), layer) == chosen.end()) {
      continue;
    }
    status = PutLayer(tokens, layer);
  }
  return status;
}

Status CacheDriver::PutLayer(const std::vector<TestToken>& tokens, int layer) {
  const Status status = PutContents(*cache_, tokens, layer, kShapes[layer]);
  std::vector<std::optional<NaiveContent>> contents(tokens.size());
  for (std::size_t i = 0; i < tokens.size() && status.ok(); ++i) {
    const std::uint32_t content = tokens[i].content;
    contents[i] = {RoundedAll(setup_.options.k_type, KeyContent(content, layer, kShapes[layer])),
                   RoundedAll(setup_.options.v_type, ValueContent(content, layer, kShapes[layer]))};
  }
  naive_.Put(layer, contents);
  // A refused allocation leaves the layer as it was; a store fails in a layer that exists.
  if (status.code() != StatusCode::kOutOfMemory) written_[layer] = true;
  return status;
}

Status CacheDriver::RunRemove(const ScriptStep& step, StatusCode& expected) {
  Status status = cache_->Remove(SequenceId{step.sequence}, step.begin, step.end);
  expected =
      naive_.Remove(step.sequence, step.begin, step.end, [&](int layer, NaiveContent& content) {
        TurnContent(layer, setup_.options.k_type, step.begin - step.end, content);
      });
  return status;
}

std::optional<std::string> CacheDriver::CheckAll() {
  for (const auto check :
       {&CacheDriver::CheckInvariants, &CacheDriver::CheckResume, &CacheDriver::CheckMemory}) {
    if (Difference difference = (this->*check)()) return difference;
  }
  if (Difference difference = CheckSequences()) return difference;
  return CheckPass();
}

std::optional<std::string> CacheDriver::CheckInvariants() const {
  const CellTable& table = cache_->cells();
  std::vector<std::int32_t> users(table.cells(), 0);
  for (int s = 0; s < table.sequences(); ++s) {
    const auto runs = table.history(SequenceId{s}).runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].length <= 0 || runs[i].cell < 0 ||
          runs[i].cell + runs[i].length > table.cells()) {
        return "a run is empty or outside of the cells in sequence " + std::to_string(s);
      }
      if (i > 0 && runs[i].position < RunList::End(runs[i - 1])) return "runs overlap";
      if (i > 0 && Continues(runs[i - 1], runs[i])) return "runs are not merged";
      for (int j = 0; j < runs[i].length; ++j) ++users[runs[i].cell + j];
    }
  }
  std::int64_t used = 0;
  for (std::int32_t cell = 0; cell < table.cells(); ++cell) {
    if (table.users(cell) != users[cell] || table.IsFree(cell) != (users[cell] == 0)) {
      return "cell " + std::to_string(cell) + " has " + std::to_string(table.users(cell)) +
             " users, " + std::to_string(users[cell]) + " runs, and is " +
             (table.IsFree(cell) ? "free" : "not free");
    }
    used += users[cell] > 0;
  }
  if (table.cells() != setup_.cells()) return "the number of cells";
  if (used != naive_.used_cells() || used + table.free_cells() != table.cells()) {
    return std::to_string(used) + " cells used, " + std::to_string(table.free_cells()) +
           " free, expected " + std::to_string(naive_.used_cells()) + " used of " +
           std::to_string(table.cells());
  }
  return {};
}

std::optional<std::string> CacheDriver::CheckResume() const {
  for (int s = -1; s <= naive_.sequences(); ++s) {
    for (Position position = -1; position < setup_.options.capacity + 4; ++position) {
      if (cache_->CanResume(SequenceId{s}, position) != naive_.CanResume(s, position)) {
        return "CanResume of " + At(s, position);
      }
    }
  }
  return {};
}

std::optional<std::string> CacheDriver::CheckMemory() const {
  std::int64_t expected = 0;
  const std::int64_t cells =
      RoundUp(setup_.cells(), std::lcm(kCellTile, setup_.config.cell_padding));
  for (int layer = 0; layer < kLayers; ++layer) {
    if (!written_[layer]) continue;
    const KvShape& shape = kShapes[layer];
    expected += BytesOf(setup_.options.k_type, cells * shape.kv_heads * shape.k_dim) +
                BytesOf(setup_.options.v_type, cells * shape.kv_heads * shape.v_dim);
  }
  if (cache_->AllocatedBytes() == expected && backend_.live_bytes() == expected) return {};
  return "AllocatedBytes is " + std::to_string(cache_->AllocatedBytes()) + ", lent are " +
         std::to_string(backend_.live_bytes()) + ", expected " + std::to_string(expected);
}

std::optional<std::string> CacheDriver::CheckSequences() {
  std::map<std::int32_t, const NaiveToken*> token_of;  // the same cells hold the same tokens
  std::set<const NaiveToken*> tokens;
  for (int s = 0; s < naive_.sequences(); ++s) {
    std::size_t positions = 0;
    for (const HistoryRun& run : cache_->cells().history(SequenceId{s}).runs()) {
      positions += run.length;
    }
    if (positions != naive_.sequence(s).size()) {
      return "sequence " + std::to_string(s) + " holds " + std::to_string(positions) +
             " positions, expected " + std::to_string(naive_.sequence(s).size());
    }
    for (const auto& [position, token] : naive_.sequence(s)) {
      const std::int32_t cell = cache_->cells().history(SequenceId{s}).CellOf(position);
      if (cell == RunList::kNoCell) return At(s, position) + " is missing";
      const bool first_time = tokens.insert(token.get()).second;
      if (token_of.emplace(cell, token.get()).second != first_time ||
          token_of[cell] != token.get()) {
        return At(s, position) + " shares, or should share, cell " + std::to_string(cell);
      }
      for (int layer = 0; layer < kLayers; ++layer) {
        cache_->SetLayer(layer);
        auto storage = cache_->Storage();
        if (storage.ok() != written_[layer]) return "Storage of layer " + std::to_string(layer);
        if (!storage.ok()) continue;
        if (Difference difference = CheckBytes(*storage, layer, cell, *token)) {
          return At(s, position) + ": " + *difference;
        }
      }
    }
  }
  return {};
}

std::optional<std::string> CacheDriver::CheckBytes(const LayerKv& storage, int layer,
                                                   std::int32_t cell,
                                                   const NaiveToken& token) const {
  if (!token.layers[layer].has_value()) return {};
  const std::string where =
      " in cell " + std::to_string(cell) + " of layer " + std::to_string(layer);
  if (ReadKey(storage, cell) != token.layers[layer]->key) return "another key" + where;
  if (ReadValue(storage, cell) != token.layers[layer]->value) return "another value" + where;
  return {};
}

// The cells that a query must see, ascending.
std::vector<std::int32_t> CacheDriver::ExpectedCells(const NaiveCache::Query& query) const {
  std::vector<std::int32_t> cells;
  if (naive_.reserving()) {
    cells.resize(setup_.cells());
    std::iota(cells.begin(), cells.end(), 0);
    return cells;
  }
  const RunList& history = cache_->cells().history(SequenceId{query.sequence});
  for (const auto& [position, token] : naive_.sequence(query.sequence)) {
    if (position <= query.position) cells.push_back(history.CellOf(position));
  }
  std::sort(cells.begin(), cells.end());
  return cells;
}

std::optional<std::string> CacheDriver::CheckPass() {
  const std::size_t queries = naive_.in_pass() ? naive_.queries().size() : 0;
  if (cache_->Visible().positions.size() != queries) {
    return "Visible has " + std::to_string(cache_->Visible().positions.size()) +
           " queries, expected " + std::to_string(queries);
  }
  if (Difference difference = CheckClosedForm()) return difference;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (!written_[layer]) continue;
    if (Difference difference = CheckViews(layer)) {
      return "layer " + std::to_string(layer) + ": " + *difference;
    }
  }
  return {};
}

std::optional<std::string> CacheDriver::CheckClosedForm() const {
  const Visibility& visible = cache_->Visible();
  for (std::size_t i = 0; i < visible.positions.size(); ++i) {
    std::vector<std::int32_t> cells;
    for (const HistoryRun& run : visible.histories[visible.histories_index[i]]) {
      for (int j = 0; j < run.length; ++j) {
        if (run.position + j <= visible.positions[i]) cells.push_back(run.cell + j);
      }
    }
    std::sort(cells.begin(), cells.end());
    if (cells != ExpectedCells(naive_.queries()[i])) {
      return "query " + std::to_string(i) + " does not see what it should";
    }
  }
  return {};
}

std::optional<std::string> CacheDriver::CheckViews(int layer) {
  cache_->SetLayer(layer);
  auto history = cache_->Get();
  if (!naive_.in_pass() || setup_.config.layout != KvLayout::kPlain) {
    const StatusCode expected =
        naive_.in_pass() ? StatusCode::kUnsupported : StatusCode::kInvalidArgument;
    return history.status().code() == expected ? Difference() : "Get's error";
  }
  if (!history.ok()) return "Get: " + history.status().message();
  const LayerKv storage = *cache_->Storage();
  const std::int64_t cell_bytes =
      BytesOf(storage.k_type, storage.shape.kv_heads * storage.shape.k_dim);
  const std::int64_t first = (history->k.data - storage.k) / cell_bytes;
  const std::int64_t padding = setup_.config.cell_padding;

  std::set<std::int32_t> seen;
  std::vector<std::string> rows;
  const std::int64_t columns = history->mask.dims[0];
  for (const NaiveCache::Query& query : naive_.queries()) {
    std::string row(columns, '.');
    for (const std::int32_t cell : ExpectedCells(query)) {
      seen.insert(cell);
      if (cell < first || cell >= first + columns) return "the history leaves cells out";
      row[cell - first] = '0';
    }
    rows.push_back(row);
  }
  while (rows.size() % setup_.config.batch_padding != 0) rows.emplace_back(columns, '.');
  if (MaskRows(history->mask) != rows) return "the mask";
  if (first != *seen.begin() / padding * padding ||
      first + columns != RoundUp(*seen.rbegin() + 1, padding)) {
    return "the history is [" + std::to_string(first) + ", " + std::to_string(first + columns) +
           ")";
  }
  const int along = setup_.config.v_transposed ? 0 : 2;
  if (history->k.dims[2] != columns || history->v.dims[along] != columns) return "a view's size";
  for (const std::int32_t cell : seen) {
    std::vector<float> key;
    std::vector<float> value;
    for (int head = 0; head < storage.shape.kv_heads; ++head) {
      for (int d = 0; d < storage.shape.k_dim; ++d) {
        key.push_back(KeyAt(*history, cell - first, head, d));
      }
      for (int d = 0; d < storage.shape.v_dim; ++d) {
        value.push_back(ValueAt(*history, setup_.config.v_transposed, cell - first, head, d));
      }
    }
    // The storage itself was compared with the naive cache before.
    if (key != ReadKey(storage, cell) || value != ReadValue(storage, cell)) {
      return "a view shows another cell than " + std::to_string(cell);
    }
  }
  return {};
}

std::optional<std::string> CacheDriver::Finish() {
  cache_->Close();
  if (backend_.live_bytes() != 0 || cache_->AllocatedBytes() != 0) {
    return "Close left " + std::to_string(backend_.live_bytes()) + " bytes";
  }
  cache_->Close();
  return {};
}

std::optional<ScriptFailure> RunScript(const DriverSetup& setup, const Script& script) {
  CacheDriver driver(setup);
  for (std::size_t i = 0; i < script.size(); ++i) {
    if (auto difference = driver.Step(script[i])) return ScriptFailure{i, *difference};
  }
  if (auto difference = driver.Finish()) return ScriptFailure{script.size(), *difference};
  return {};
}

}  // namespace kvcache::testing
