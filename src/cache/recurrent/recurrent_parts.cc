#include "cache/recurrent/recurrent_parts.h"

#include <algorithm>

#include "base/strings.h"
#include "cache/recurrent/recurrent_rounds.h"

namespace kvcache {
namespace {

int PassSequences(const CacheOptions& options) {
  return std::min(options.max_sequences, options.max_batch);
}

bool Sane(std::int64_t values) {
  return values >= 0 && values <= (std::int64_t{1} << 40);
}

Status CheckLayerNumbers(const RecurrentOptions& r) {
  for (const int layer : r.layers) {
    if (layer < 0 || layer >= LayerStore::kMaxLayers) {
      return Invalid(
          StrCat("recurrent layer ", layer, " is not in [0, ", LayerStore::kMaxLayers, ")"));
    }
    if (std::count(r.layers.begin(), r.layers.end(), layer) != 1) {
      return Invalid(StrCat("layer ", layer, " is listed twice in RecurrentOptions::layers"));
    }
  }
  return Status::Ok();
}

Status CheckStateSizes(const RecurrentOptions& r) {
  if (r.conv_dim < 0 || r.conv_channels < 0 || (r.conv_dim == 0) != (r.conv_channels == 0) ||
      !Sane(r.state_size)) {
    return Invalid(StrCat("conv_dim is ", r.conv_dim, ", conv_channels is ", r.conv_channels,
                          ", state_size is ", r.state_size,
                          "; must be at least 0, and the first two both 0 or neither"));
  }
  if (!r.layers.empty() && r.conv_dim == 0 && r.state_size == 0) {
    return Invalid(
        "recurrent layers without a state; set conv_dim and conv_channels, or state_size");
  }
  return Status::Ok();
}

Status CheckNumbers(const RecurrentOptions& r, const CacheOptions& options) {
  if (r.snapshot_states < 0 || r.snapshot_states > kMaxCells) {
    return Invalid(
        StrCat("snapshot_states is ", r.snapshot_states, "; must be in [0, ", kMaxCells, "]"));
  }
  if (!Sane(r.draft_inputs)) {
    return Invalid(StrCat("draft_inputs is ", r.draft_inputs, "; must be at least 0"));
  }
  if (r.max_states < 0 || r.max_states > options.max_sequences) {
    return Invalid(StrCat("max_states is ", r.max_states,
                          "; must be in [0, max_sequences], here [0, ", options.max_sequences,
                          "]"));
  }
  const auto& [count, spacing, minimum] = r.checkpoints;
  if (count < 0 || spacing < 1 || minimum < 0) {
    return Invalid(StrCat("checkpoints: count is ", count, ", spacing is ", spacing,
                          ", minimum is ", minimum, "; must be at least 0, 1 and 0"));
  }
  return Status::Ok();
}

StateTable::Options StateTableFor(const RecurrentOptions& recurrent, const CacheOptions& cache) {
  return {.sequences = cache.max_sequences,
          .pass_sequences = PassSequences(cache),
          .max_states = recurrent.max_states,
          .checkpoints = recurrent.checkpoints,
          .snapshot_states = recurrent.snapshot_states,
          .round_states = RecurrentRounds::MaxStates(cache)};
}

}  // namespace

Status RecurrentParts::CheckInit(const KvBackend& backend, const CacheOptions& cache) const {
  KVCACHE_RETURN_IF_ERROR(CheckSizes(cache));
  KVCACHE_RETURN_IF_ERROR(CheckLayerNumbers(options));
  KVCACHE_RETURN_IF_ERROR(CheckStateSizes(options));
  KVCACHE_RETURN_IF_ERROR(CheckNumbers(options, cache));
  if (StateTable::CellsFor(StateTableFor(options, cache)) > kMaxCells) {
    return Invalid(StrCat("max_sequences ", cache.max_sequences, " x checkpoints ",
                          options.checkpoints.count, " + snapshot_states ", options.snapshot_states,
                          " are more than ", kMaxCells, " states"));
  }
  return attention.CheckInit(backend, cache);
}

void RecurrentParts::Reset(KvBackend& backend, const CacheOptions& cache) {
  const StateTable::Options table = StateTableFor(options, cache);
  const auto cells = static_cast<std::int32_t>(StateTable::CellsFor(table)) - 1;
  const auto layers = static_cast<int>(options.layers.size());
  const int page = cache.releases_memory ? 1 : table.pass_sequences;
  states.Reset(table);
  conv.Reset(backend, std::int64_t{options.conv_dim} * options.conv_channels, options.layers, cells,
             page);
  state.Reset(backend, options.state_size, options.layers, cells, page);
  inputs.Reset(backend, options.draft_inputs, layers);
  pool = std::make_shared<RecurrentSnapshotPool>(backend, states, conv, state, layers);
  captures.Reset(pool.get(), cache.max_sequences);
  prepared.assign(cache.max_sequences, kNotPrepared);
  for (int i = 0; i < layers; ++i) {
    const int layer = options.layers[i];
    index_of_layer.resize(std::max<std::size_t>(index_of_layer.size(), layer + 1), -1);
    index_of_layer[layer] = i;
  }
}

void RecurrentParts::Close() {
  attention.Close();
  captures.Clear();
  if (pool != nullptr) pool->Detach();
  pool = {};
  inputs = {};
  conv = {};
  state = {};
  states = {};
}

}  // namespace kvcache
