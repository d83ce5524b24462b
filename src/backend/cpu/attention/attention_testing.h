// Scenes for the tests of attention: sequences with known keys and values, stored in any layout and
// any cells.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/common/kv_blocks_testing.h"
#include "gtest/gtest.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/kv_backend.h"
#include "tensor/float_conversion.h"

namespace kvcache::cpu {

inline float RoundToType(DType type, float value) {
  if (type == DType::kF16) return F16ToF32(F32ToF16(value));
  if (type == DType::kBF16) return Bf16ToF32(F32ToBf16(value));
  return value;
}

// A value in [-1, 1) that depends on all of its coordinates.
inline float HashValue(std::uint32_t seed, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(a) * 0x100000001b3ull;
  for (const std::int64_t part : {b, c}) {
    x ^= static_cast<std::uint64_t>(part) + 0x9e3779b97f4a7c15ull + (x << 6) + (x >> 2);
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 32;
  }
  return static_cast<float>(static_cast<double>(x >> 11) * 0x1p-52 - 1.0);
}

struct QueryAt {
  int sequence = 0;
  Position position = 0;
  bool bidirectional = false;
};

struct SceneOptions {
  KvShape shape{2, 64, 64};
  int heads = 4;
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  KvLayout layout = KvLayout::kTiled;
  bool v_transposed = false;
};

inline std::vector<QueryAt> Range(int sequence, Position begin, Position end) {
  std::vector<QueryAt> batch;
  for (Position p = begin; p < end; ++p) batch.push_back({sequence, p});
  return batch;
}

// The same 700 positions: in runs that begin and end anywhere in a tile, in single cells, and
// in runs whose order in memory is reversed.
inline std::vector<std::vector<HistoryRun>> Scattered(int kind) {
  std::vector<HistoryRun> runs;
  if (kind == 0) {
    runs = {{0, 1000, 100}, {100, 3, 211}, {311, 517, 1}, {312, 600, 388}};
  } else if (kind == 1) {
    for (Position p = 0; p < 700; ++p) runs.push_back({p, (p * 37) % 701, 1});
  } else {
    for (Position p = 0; p < 700; p += 28) runs.push_back({p, 700 - 28 - p, 28});
  }
  return {runs};
}

// Histories in a layer whose unused cells are NaN. A cell that histories share holds the token of
// the first of them.
class Scene {
 public:
  Scene(SceneOptions options, std::vector<std::vector<HistoryRun>> runs)
      : options_(options), runs_(std::move(runs)) {
    std::int64_t cells = 1;
    for (const auto& sequence : runs_) {
      for (const HistoryRun& run : sequence) {
        cells = std::max<std::int64_t>(cells, std::int64_t{run.cell} + run.length);
      }
    }
    layer_.shape = options.shape;
    layer_.k_type = options.k_type;
    layer_.v_type = options.shape.v_in_k ? options.k_type : options.v_type;
    layer_.layout = options.layout;
    layer_.v_transposed = options.v_transposed;
    layer_.cells = (cells + 15) / 16 * 16;
    NameTokens();
    k_.assign(static_cast<std::size_t>(layer_.KBytes()), std::byte{0xff});
    v_.assign(static_cast<std::size_t>(layer_.VBytes()), std::byte{0xff});
    layer_.k = k_.data();
    layer_.v = options.shape.v_in_k ? nullptr : v_.data();
  }

  // The sequence's length is the positions of `lengths`, one run each.
  static std::vector<std::vector<HistoryRun>> Contiguous(const std::vector<int>& lengths) {
    std::vector<std::vector<HistoryRun>> runs;
    std::int32_t cell = 0;
    for (const int length : lengths) {
      runs.push_back({{0, cell, length}});
      cell += (length + 15) / 16 * 16;
    }
    return runs;
  }

  const SceneOptions& options() const { return options_; }
  const LayerKv& layer() const { return layer_; }
  const std::vector<std::vector<HistoryRun>>& runs() const { return runs_; }

  // The stored value; keys of block types are transformed.
  float Key(int sequence, Position p, int head, int d) const {
    if (IsKvBlockType(options_.k_type)) {
      return StoredKey(layer_, head, CellOf(sequence, p), d).Value();
    }
    return RoundToType(options_.k_type, HashValue(1, TokenAt(CellOf(sequence, p)), head, d));
  }
  float Value(int sequence, Position p, int head, int d) const {
    if (options_.shape.v_in_k) return Key(sequence, p, head, d);
    if (IsKvBlockType(options_.v_type)) {
      return StoredValue(layer_, head, CellOf(sequence, p), d).Value();
    }
    return RoundToType(options_.v_type, HashValue(2, TokenAt(CellOf(sequence, p)), head, d));
  }
  float Query(const QueryAt& at, int head, int d) const {
    return 2.0f * HashValue(3, at.sequence * 1000003 + at.position, head, d);
  }

  // Stores every retained position through the backend.
  void Fill(KvBackend& backend) {
    const KvShape& shape = options_.shape;
    for (const auto& sequence : runs_) {
      for (const HistoryRun& run : sequence) {
        std::vector<float> k;
        std::vector<float> v;
        for (int i = 0; i < run.length; ++i) {
          const std::int64_t token = TokenAt(run.cell + i);
          for (int h = 0; h < shape.kv_heads; ++h) {
            for (int d = 0; d < shape.k_dim; ++d) k.push_back(HashValue(1, token, h, d));
            for (int d = 0; d < shape.v_dim; ++d) v.push_back(HashValue(2, token, h, d));
          }
        }
        const CellRun cells[] = {{run.cell, run.length}};
        const TensorView keys =
            TensorView::Dense(k.data(), DType::kF32, shape.k_dim, shape.kv_heads, run.length);
        const Status status = backend.StoreKv(
            layer_, keys,
            shape.v_in_k
                ? ValuesInKeys(keys, shape.v_dim)
                : TensorView::Dense(v.data(), DType::kF32, shape.v_dim, shape.kv_heads, run.length),
            cells);
        ASSERT_TRUE(status.ok()) << status.message();
      }
    }
  }

  bool Keeps(int sequence, Position p) const { return RunOf(sequence, p) != nullptr; }
  // REQUIRES: Keeps.
  std::int64_t CellOf(int sequence, Position p) const {
    const HistoryRun& run = *RunOf(sequence, p);
    return std::int64_t{run.cell} + (p - run.position);
  }
  Position End(int sequence) const {
    const auto& runs = runs_[static_cast<std::size_t>(sequence)];
    return runs.empty() ? 0 : runs.back().position + runs.back().length;
  }

 private:
  // The seed of a token's values: the sequence and position that first used its cell.
  void NameTokens() {
    tokens_.assign(static_cast<std::size_t>(layer_.cells), kNone);
    for (std::size_t s = 0; s < runs_.size(); ++s) {
      for (const HistoryRun& run : runs_[s]) {
        for (int i = 0; i < run.length; ++i) {
          std::int64_t& token = tokens_[static_cast<std::size_t>(run.cell + i)];
          if (token == kNone) token = static_cast<std::int64_t>(s) * 1000003 + run.position + i;
        }
      }
    }
  }
  std::int64_t TokenAt(std::int64_t cell) const { return tokens_[static_cast<std::size_t>(cell)]; }

  static constexpr std::int64_t kNone = -1;

  // Returns null if the position is not retained.
  const HistoryRun* RunOf(int sequence, Position p) const {
    const auto& runs = runs_[static_cast<std::size_t>(sequence)];
    const auto next = std::partition_point(
        runs.begin(), runs.end(), [&](const HistoryRun& run) { return run.position <= p; });
    if (next == runs.begin()) return nullptr;
    const HistoryRun& run = *std::prev(next);
    return p < run.position + run.length ? &run : nullptr;
  }

  SceneOptions options_;
  std::vector<std::vector<HistoryRun>> runs_;
  std::vector<std::int64_t> tokens_;  // [cells]
  LayerKv layer_;
  std::vector<std::byte> k_;
  std::vector<std::byte> v_;
};

// The visibility and options of a call.
struct Rules {
  std::int32_t window = 0;
  std::int32_t chunk = 0;
  float scale = 0.125f;
  float soft_cap = 0.0f;
  std::vector<float> sinks = {};
  std::vector<float> bias = {};  // [past + 1 + future, heads]
  int past = 0;
  int future = 0;
};

inline bool Sees(const Scene& scene, const Rules& rules, const QueryAt& query, Position p) {
  if (!scene.Keeps(query.sequence, p)) return false;
  if (!query.bidirectional && p > query.position) return false;
  if (rules.window > 0 && p <= query.position - rules.window) return false;
  return rules.chunk <= 0 || p >= query.position - query.position % rules.chunk;
}

// Calls Attention and returns [batch][heads][v_dim].
inline std::vector<float> Attend(KvBackend& backend, const Scene& scene,
                                 const std::vector<QueryAt>& batch, const Rules& rules) {
  const SceneOptions& o = scene.options();
  std::vector<float> q;
  std::vector<Position> positions;
  std::vector<std::int32_t> index;
  std::vector<std::uint8_t> bidirectional;
  for (const QueryAt& at : batch) {
    for (int h = 0; h < o.heads; ++h) {
      for (int d = 0; d < o.shape.k_dim; ++d) q.push_back(scene.Query(at, h, d));
    }
    positions.push_back(at.position);
    index.push_back(at.sequence);
    bidirectional.push_back(at.bidirectional ? 1 : 0);
  }
  const std::vector<std::span<const HistoryRun>> histories(scene.runs().begin(),
                                                           scene.runs().end());
  const Visibility visibility{.positions = positions,
                              .history_of_query = index,
                              .histories = histories,
                              .bidirectional = bidirectional,
                              .window = rules.window,
                              .chunk = rules.chunk};
  const auto tokens = static_cast<std::int64_t>(batch.size());
  std::vector<float> out(batch.size() * static_cast<std::size_t>(o.heads * o.shape.v_dim), -7.0f);
  const Status status = backend.Attention(
      scene.layer(), TensorView::Dense(q.data(), DType::kF32, o.shape.k_dim, o.heads, tokens),
      visibility,
      {.scale = rules.scale,
       .soft_cap = rules.soft_cap,
       .sinks = rules.sinks,
       .bias = {.values = rules.bias, .past = rules.past, .future = rules.future}},
      TensorView::Dense(out.data(), DType::kF32, o.shape.v_dim, o.heads, tokens));
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

// Attend in calls of `piece` tokens.
inline std::vector<float> InPieces(KvBackend& backend, const Scene& scene,
                                   const std::vector<QueryAt>& batch, std::size_t piece) {
  std::vector<float> all;
  for (std::size_t i = 0; i < batch.size(); i += piece) {
    const auto end = batch.begin() + static_cast<std::ptrdiff_t>(std::min(i + piece, batch.size()));
    const std::vector<QueryAt> part(batch.begin() + static_cast<std::ptrdiff_t>(i), end);
    const std::vector<float> out = Attend(backend, scene, part, {});
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

// Checks that both are equal as bytes; the failure names the first difference.
inline ::testing::AssertionResult SameBits(const std::vector<float>& a,
                                           const std::vector<float>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " values against " << b.size();
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return ::testing::AssertionFailure()
             << "value " << i << " of " << a.size() << ": " << a[i] << " against " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

inline std::unique_ptr<Backend> CpuWithThreads(int threads) {
  auto backend = MakeCpuBackend({.threads = threads});
  EXPECT_TRUE(backend.ok());
  return std::move(backend).value();
}

}  // namespace kvcache::cpu
