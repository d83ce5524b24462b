#include "kvcache/causal_cache.h"

#include <cassert>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <utility>

#include "cache/causal_cache_impl.h"

namespace kvcache {
namespace {

// Bounds that keep every count of cells within int32.
constexpr int kMaxPadding = 1 << 16;
constexpr std::int64_t kMaxCells = std::numeric_limits<std::int32_t>::max() - 2 * 16 * kMaxPadding;

constexpr std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Status Invalid(std::string message) {
  return {StatusCode::kInvalidArgument, std::move(message)};
}

std::string Numbers(const CacheOptions& options) {
  return std::to_string(options.max_sequences) + " sequences of capacity " +
         std::to_string(options.capacity);
}

Status CheckConfig(const CacheConfig& config) {
  for (const int padding : {config.cell_padding, config.batch_padding}) {
    if (padding < 1 || padding > kMaxPadding) {
      return Invalid("a padding of " + std::to_string(padding) + " is not in [1, " +
                     std::to_string(kMaxPadding) + "]");
    }
  }
  if (config.v_transposed && config.layout != KvLayout::kPlain) {
    return Invalid("V can be transposed in the plain layout only");
  }
  if (!HistoryMask::Supports(config.mask_type)) {
    return {StatusCode::kUnsupported,
            "no masks of type " + std::string(InfoOf(config.mask_type).name)};
  }
  return Status::Ok();
}

Status CheckOptions(const CacheOptions& options) {
  if (options.max_sequences < 1 || options.capacity < 1 || options.max_batch < 1) {
    return Invalid("sizes must be at least one: " + Numbers(options) + ", batches of " +
                   std::to_string(options.max_batch));
  }
  if (static_cast<std::int64_t>(options.max_sequences) * options.capacity > kMaxCells) {
    return Invalid(Numbers(options) + " are more than " + std::to_string(kMaxCells) + " cells");
  }
  return Status::Ok();
}

// Homes on tile boundaries put a token in the lane of its position.
std::int32_t HomeStride(std::int32_t capacity) {
  return capacity < kCellTile ? capacity : capacity / kCellTile * kCellTile;
}

// The shape of a batch's K and V, `batch` tokens each.
Result<KvShape> ShapeOf(const TensorView& k, const TensorView& v, std::int64_t batch) {
  if (k.dtype != DType::kF32 || v.dtype != DType::kF32) return Invalid("K and V must be f32");
  if (k.dims[2] != batch || v.dims[2] != batch || k.dims[3] != 1 || v.dims[3] != 1) {
    return Invalid("K has " + std::to_string(k.dims[2]) + " tokens and V " +
                   std::to_string(v.dims[2]) + ", the batch has " + std::to_string(batch));
  }
  if (k.dims[1] != v.dims[1]) {
    return Invalid("K has " + std::to_string(k.dims[1]) + " heads, V has " +
                   std::to_string(v.dims[1]));
  }
  for (const std::int64_t dim : {k.dims[0], v.dims[0], k.dims[1]}) {
    if (dim < 1 || dim > std::numeric_limits<int>::max()) {
      return Invalid("a head or its size is " + std::to_string(dim));
    }
  }
  return KvShape{static_cast<int>(k.dims[1]), static_cast<int>(k.dims[0]),
                 static_cast<int>(v.dims[0])};
}

TensorView KeysOf(const LayerKv& layer, const CellRun& cells) {
  TensorView view = TensorView::Dense(layer.k, layer.k_type, layer.shape.k_dim,
                                      layer.shape.kv_heads, cells.length);
  view.data += cells.cell * view.stride_bytes[2];
  return view;
}

TensorView ValuesOf(const LayerKv& layer, const CellRun& cells) {
  if (!layer.v_transposed) {
    TensorView view = TensorView::Dense(layer.v, layer.v_type, layer.shape.v_dim,
                                        layer.shape.kv_heads, cells.length);
    view.data += cells.cell * view.stride_bytes[2];
    return view;
  }
  TensorView view = TensorView::Dense(layer.v, layer.v_type, layer.cells, layer.shape.v_dim,
                                      layer.shape.kv_heads);
  view.dims[0] = cells.length;
  view.data += cells.cell * view.stride_bytes[0];
  return view;
}

}  // namespace

Status CausalCache::CheckReady() const {
  if (state_ == State::kReady) return Status::Ok();
  return Invalid(state_ == State::kNew ? "the cache is not initialised" : "the cache is closed");
}

Status CausalCache::CheckSequence(SequenceId id) const {
  if (cells_.Knows(id)) return Status::Ok();
  return Invalid("sequence " + std::to_string(Index(id)) + " is not in [0, " +
                 std::to_string(options_.max_sequences) + ")");
}

Status CausalCache::SetConfig(const CacheConfig& config) {
  if (state_ != State::kNew) return Invalid("the configuration must be set before Init");
  if (config_.has_value()) return Invalid("the configuration was already set");
  KVCACHE_RETURN_IF_ERROR(CheckConfig(config));
  config_ = config;
  return Status::Ok();
}

Status CausalCache::Init(KvBackend& backend, const CacheOptions& options) {
  if (state_ != State::kNew) return Invalid("the cache was already initialised");
  const CacheConfig config = config_.value_or(backend.preferred_cache_config());
  KVCACHE_RETURN_IF_ERROR(CheckConfig(config));
  KVCACHE_RETURN_IF_ERROR(CheckOptions(options));
  KVCACHE_RETURN_IF_ERROR(backend.CheckKvTypes(options.k_type, options.v_type, config.layout));
  if (config.v_transposed && InfoOf(options.v_type).block_size > 1) {
    return {StatusCode::kUnsupported,
            "V of type " + std::string(InfoOf(options.v_type).name) + " cannot be transposed"};
  }
  const std::int64_t cells = RoundUp(
      static_cast<std::int64_t>(options.max_sequences) * options.capacity, config.cell_padding);
  try {
    cells_.Reset({.cells = static_cast<std::int32_t>(cells),
                  .sequences = options.max_sequences,
                  .home_stride = HomeStride(options.capacity)});
    pass_.Reset(options.max_batch, options.max_sequences);
  } catch (const std::bad_alloc&) {
    cells_ = {};
    pass_ = {};
    return {StatusCode::kOutOfMemory, "no memory for the metadata of " + Numbers(options)};
  }
  LayerKv prototype;
  prototype.k_type = options.k_type;
  prototype.v_type = options.v_type;
  prototype.layout = config.layout;
  prototype.v_transposed = config.v_transposed;
  prototype.cells = RoundUp(cells, std::lcm(config.cell_padding, kCellTile));
  layers_.Reset(backend, prototype);
  backend_ = &backend;
  config_ = config;
  options_ = options;
  state_ = State::kReady;
  return Status::Ok();
}

void CausalCache::Close() {
  state_ = State::kClosed;
  pass_ = {};
  mask_ = {};
  layers_ = {};
  cells_ = {};
  backend_ = nullptr;
}

Status CausalCache::CheckBatch(const Batch& batch) const {
  if (batch.sequences.size() != batch.size()) {
    return Invalid("the batch has " + std::to_string(batch.size()) + " positions and " +
                   std::to_string(batch.sequences.size()) + " sequences");
  }
  if (batch.size() == 0) return Invalid("the batch is empty");
  if (batch.size() > static_cast<std::size_t>(options_.max_batch)) {
    return Invalid("the batch has " + std::to_string(batch.size()) + " tokens, at most " +
                   std::to_string(options_.max_batch) + " are allowed");
  }
  for (const SequenceId id : batch.sequences) KVCACHE_RETURN_IF_ERROR(CheckSequence(id));
  for (const Position position : batch.positions) {
    if (position < 0 || position == kEndOfSequence) {
      return Invalid(std::to_string(position) + " is not a position");
    }
  }
  return Status::Ok();
}

Status CausalCache::CheckPositions(std::span<const ForwardPass::Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [sequence, position, index] = tokens[i];
    const bool repeated =
        i > 0 && tokens[i - 1].sequence == sequence && tokens[i - 1].position == position;
    if (repeated || cells_.history(sequence).CellOf(position) != RunList::kNoCell) {
      return Invalid("token " + std::to_string(index) + " of the batch: sequence " +
                     std::to_string(Index(sequence)) + " already holds position " +
                     std::to_string(position));
    }
  }
  return Status::Ok();
}

// At worst each token starts a run.
Status CausalCache::ReserveRuns(std::span<const ForwardPass::Token> tokens) {
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    while (end < tokens.size() && tokens[end].sequence == tokens[begin].sequence) ++end;
    if (!cells_.Reserve(tokens[begin].sequence, end - begin)) {
      return {StatusCode::kOutOfMemory, "no memory for the runs of sequence " +
                                            std::to_string(Index(tokens[begin].sequence))};
    }
  }
  return Status::Ok();
}

Status CausalCache::StartForward(const Batch& batch, ForwardMode mode) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckBatch(batch));
  const auto size = static_cast<std::int32_t>(batch.size());
  if (mode == ForwardMode::kReserve) {
    pass_.BeginReserve(size, cells_);
  } else {
    const std::span<const ForwardPass::Token> tokens = pass_.Order(batch);
    KVCACHE_RETURN_IF_ERROR(CheckPositions(tokens));
    if (cells_.free_cells() < size) {
      return {StatusCode::kCacheFull, "the batch needs " + std::to_string(size) + " cells, " +
                                          std::to_string(cells_.free_cells()) + " of " +
                                          std::to_string(cells_.cells()) + " are free (" +
                                          Numbers(options_) + ")"};
    }
    KVCACHE_RETURN_IF_ERROR(ReserveRuns(tokens));
    pass_.Begin(cells_);  // nothing from here on can fail
  }
  masked_cells_ = {};
  return Status::Ok();
}

Status CausalCache::Put(const TensorView& k, const TensorView& v) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  if (!pass_.active()) return Invalid("Put outside a forward pass");
  KVCACHE_ASSIGN_OR_RETURN(const KvShape shape, ShapeOf(k, v, pass_.size()));
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, layers_.Ensure(layer_, shape));
  if (pass_.reserving()) return Status::Ok();
  return backend_->StoreKv(storage, k, v, pass_.cells());
}

Result<LayerKv> CausalCache::Storage() {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  if (const LayerKv* storage = layers_.Find(layer_); storage != nullptr) return *storage;
  return Status(StatusCode::kNotFound, "layer " + std::to_string(layer_) + " was never put");
}

Status CausalCache::EnsureMask() {
  if (masked_cells_.length > 0) return Status::Ok();
  const CellRun cells = VisibleCells(pass_.visibility(), config_->cell_padding);
  const std::int64_t rows = RoundUp(pass_.size(), config_->batch_padding);
  KVCACHE_RETURN_IF_ERROR(mask_.Build(pass_.visibility(), cells, rows, config_->mask_type));
  masked_cells_ = cells;
  return Status::Ok();
}

Result<History> CausalCache::Get() {
  KVCACHE_ASSIGN_OR_RETURN(const LayerKv storage, Storage());
  if (!pass_.active()) return Invalid("Get outside a forward pass");
  if (config_->layout != KvLayout::kPlain) {
    return Status(StatusCode::kUnsupported, "views of the history need the plain layout");
  }
  KVCACHE_RETURN_IF_ERROR(EnsureMask());
  return History{KeysOf(storage, masked_cells_), ValuesOf(storage, masked_cells_), mask_.view()};
}

Status CausalCache::CopyPrefix(SequenceId src, SequenceId dst, Position length) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(src));
  KVCACHE_RETURN_IF_ERROR(CheckSequence(dst));
  if (length < 0) return Invalid("a prefix of length " + std::to_string(length));
  if (src == dst) {
    cells_.Truncate(dst, length);
  } else {
    KVCACHE_RETURN_IF_ERROR(cells_.Share(src, dst, length));
  }
  pass_.End();
  return Status::Ok();
}

bool CausalCache::CanResume(SequenceId sequence, Position position) const {
  // Every token is kept, so all that is missing is what was never there.
  return state_ == State::kReady && cells_.Knows(sequence) && position >= 0 &&
         position <= cells_.history(sequence).length();
}

Status CausalCache::Remove(SequenceId sequence, Position begin, Position end) {
  KVCACHE_RETURN_IF_ERROR(CheckReady());
  KVCACHE_RETURN_IF_ERROR(CheckSequence(sequence));
  if (begin < 0 || end < begin) {
    return Invalid("no such range of positions: [" + std::to_string(begin) + ", " +
                   std::to_string(end) + ")");
  }
  if (end < cells_.history(sequence).length()) {
    if (begin < end) return RemoveMiddle(sequence, begin, end);
  } else {
    cells_.Truncate(sequence, begin);
  }
  pass_.End();
  return Status::Ok();
}

Status CausalCache::RemoveMiddle(SequenceId sequence, Position begin, Position end) {
  if (!shift_keys_) {
    return {StatusCode::kUnsupported, "positions [" + std::to_string(begin) + ", " +
                                          std::to_string(end) + ") of " +
                                          std::to_string(cells_.history(sequence).length()) +
                                          " cannot be removed without a function that shifts keys"};
  }
  KVCACHE_ASSIGN_OR_RETURN(const MiddleRemoval removal, cells_.RemoveMiddle(sequence, begin, end));
  pass_.End();
  for (int layer = 0; layer < layers_.size(); ++layer) {
    const LayerKv* storage = layers_.Find(layer);
    if (storage == nullptr) continue;
    if (!removal.copies.empty()) {
      KVCACHE_RETURN_IF_ERROR(backend_->CopyCells(*storage, removal.copies));
    }
    KVCACHE_RETURN_IF_ERROR(shift_keys_(layer, *storage, removal.shifted, begin - end));
  }
  return Status::Ok();
}

std::unique_ptr<Cache> MakeCausalCache(CausalOptions options) {
  return std::make_unique<CausalCache>(std::move(options));
}

}  // namespace kvcache
