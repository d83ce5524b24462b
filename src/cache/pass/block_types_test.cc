// Caches of block types: after any calls, a cell has the bytes of its token stored alone into a
// fresh cell and shifted as often as it moved. Uses the CPU's kernels; tests/exactness covers
// attention.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/common/kv_blocks.h"
#include "cache/causal/causal_cache_impl.h"
#include "kvcache/cpu_backend.h"
#include "kvcache/encoder_cache.h"

namespace kvcache::block_types_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr KvShape kShape{2, 64, 32};
constexpr int kLayers = 2;

// A token: the seed of its rows, and the shifts of its keys.
struct Token {
  std::uint32_t seed = 0;
  std::vector<Position> offsets;
};

std::vector<float> Rows(std::uint32_t seed, int layer, int dim) {
  std::minstd_rand random(seed * 7919 + static_cast<std::uint32_t>(layer * 31 + dim));
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  std::vector<float> rows(static_cast<std::size_t>(kShape.kv_heads * dim));
  for (float& value : rows) value = uniform(random);
  return rows;
}

// K and V of tokens, row after row.
struct Contents {
  std::vector<float> k;
  std::vector<float> v;
  std::int64_t tokens = 0;

  void Add(std::uint32_t seed, int layer) {
    for (const float value : Rows(seed, layer, kShape.k_dim)) k.push_back(value);
    for (const float value : Rows(seed, layer, kShape.v_dim)) v.push_back(value);
    ++tokens;
  }
  TensorView K() { return View(k, kShape.k_dim); }
  TensorView V() { return View(v, kShape.v_dim); }

 private:
  TensorView View(std::vector<float>& rows, int dim) const {
    return TensorView::Dense(rows.data(), DType::kF32, dim, kShape.kv_heads, tokens);
  }
};

// The bytes of a cell, collected from its tile.
Bytes CellBytes(const LayerKv& layer, std::int64_t cell) {
  Bytes bytes;
  const auto take = [&](const std::byte* at, std::int64_t count) {
    bytes.insert(bytes.end(), at, at + count);
  };
  const std::int64_t lane = cell % kCellTile;
  const int k_dim = layer.shape.k_dim;
  const int v_dim = layer.shape.v_dim;
  for (int head = 0; head < layer.shape.kv_heads; ++head) {
    const std::byte* const k =
        layer.k + cpu::BlockHeadKeys(layer, head) + cpu::BlockTile(layer.k_type, k_dim, cell);
    const std::byte* const v =
        layer.v + cpu::BlockHeadValues(layer, head) + cpu::BlockTile(layer.v_type, v_dim, cell);
    for (std::int64_t line = 0; line < cpu::CodeBytes(layer.k_type, k_dim) / 4; ++line) {
      take(k + cpu::KeyCodes(line, lane), 4);
    }
    for (int b = 0; b < v_dim / 32; ++b) {
      for (std::int64_t i = 0; i < cpu::CodeBytes(layer.v_type, 32); ++i) {
        take(v + cpu::ValueCode(layer.v_type, b, i, lane), 1);
      }
    }
    for (int b = 0; b < k_dim / 32; ++b) take(k + cpu::BlockScale(layer.k_type, k_dim, b, lane), 2);
    for (int b = 0; b < v_dim / 32; ++b) take(v + cpu::BlockScale(layer.v_type, v_dim, b, lane), 2);
  }
  return bytes;
}

const std::vector<float> kFrequencies = {1.0f, 0.25f, 0.03f, 0.001f};
const RopeParams kRope{
    .pairing = RopeParams::Pairing::kHalves, .dims = 8, .inv_freq = kFrequencies};

struct Types {
  DType k;
  DType v;
};
constexpr Types kPairs[] = {{DType::kQ8_0, DType::kQ8_0},
                            {DType::kQ4_0, DType::kQ4_0},
                            {DType::kQ8_0, DType::kQ4_0},
                            {DType::kQ4_0, DType::kQ8_0}};

class BlockTypes : public ::testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    auto backend = MakeCpuBackend({.threads = 1});
    ASSERT_TRUE(backend.ok());
    backend_ = std::move(backend).value();
  }

  // Returns the token's bytes in a layer, stored into a fresh cell and shifted there.
  Bytes Alone(const LayerKv& like, const Token& token, int layer) {
    LayerKv fresh = like;
    fresh.cells = kCellTile;
    Bytes k(static_cast<std::size_t>(fresh.KBytes()));
    Bytes v(static_cast<std::size_t>(fresh.VBytes()));
    fresh.k = k.data();
    fresh.v = v.data();
    Contents contents;
    contents.Add(token.seed, layer);
    const CellRun cell[] = {{5, 1}};
    EXPECT_TRUE(backend_->StoreKv(fresh, contents.K(), contents.V(), cell).ok());
    for (const Position offset : token.offsets) {
      EXPECT_TRUE(backend_->ShiftKeys(fresh, cell, offset, kRope).ok());
    }
    return CellBytes(fresh, 5);
  }

  CacheOptions Options(int sequences, int capacity) const {
    return {GetParam().k, GetParam().v, sequences, capacity, 32};
  }

  std::unique_ptr<Backend> backend_;
};
INSTANTIATE_TEST_SUITE_P(Types, BlockTypes, ::testing::ValuesIn(kPairs), [](const auto& test) {
  return std::string(InfoOf(test.param.k).name) + "_" + std::string(InfoOf(test.param.v).name);
});

// A causal cache, and the tokens that each of its sequences should hold.
class Causal {
 public:
  static constexpr int kSequences = 3;

  Causal(Backend& backend, CausalOptions options, const CacheOptions& sizes)
      : window_(options.window), cache_(WithShift(backend, std::move(options))) {
    EXPECT_TRUE(cache_.Init(backend, sizes).ok());
  }

  CausalCache& cache() { return cache_; }
  const std::vector<Token>& tokens(int sequence) const { return tokens_[sequence]; }

  // Appends `count` new tokens to a sequence.
  void Forward(int sequence, int count) {
    std::vector<Position> positions;
    const std::vector<SequenceId> sequences(static_cast<std::size_t>(count), SequenceId{sequence});
    for (int i = 0; i < count; ++i) {
      positions.push_back(static_cast<Position>(tokens_[sequence].size()));
      tokens_[sequence].push_back({next_seed_++, {}});
    }
    const Status started = cache_.StartForward({.positions = positions, .sequences = sequences},
                                               ForwardMode::kCompute);
    ASSERT_TRUE(started.ok()) << started.message();
    for (int layer = 0; layer < kLayers; ++layer) {
      Contents contents;
      for (const Position position : positions) {
        contents.Add(tokens_[sequence][static_cast<std::size_t>(position)].seed, layer);
      }
      cache_.SetLayer(layer);
      const Status put = cache_.Put(contents.K(), contents.V());
      ASSERT_TRUE(put.ok()) << put.message();
    }
  }

  void Copy(int from, int to, Position length) {
    ASSERT_TRUE(cache_.CopyPrefix(SequenceId{from}, SequenceId{to}, length).ok());
    tokens_[to] = tokens_[from];
    tokens_[to].resize(static_cast<std::size_t>(length));
  }

  void Remove(int sequence, Position begin, Position end) {
    const Status removed = cache_.Remove(SequenceId{sequence}, begin, end);
    ASSERT_TRUE(removed.ok()) << removed.message();
    std::vector<Token>& tokens = tokens_[sequence];
    tokens.erase(tokens.begin() + begin, tokens.begin() + end);
    for (std::size_t i = static_cast<std::size_t>(begin); i < tokens.size(); ++i) {
      tokens[i].offsets.push_back(begin - end);
    }
  }

  // Returns the positions that queries from the end of the sequence on may need.
  Position FirstKept(int sequence) const {
    const auto length = static_cast<Position>(tokens_[sequence].size());
    return window_ == 0 ? 0 : std::max(0, length - window_);
  }

 private:
  static CausalOptions WithShift(Backend& backend, CausalOptions options) {
    options.shift_keys = [&backend](int, const LayerKv& layer, std::span<const CellRun> cells,
                                    Position offset) {
      return backend.ShiftKeys(layer, cells, offset, kRope);
    };
    return options;
  }

  int window_;
  CausalCache cache_;
  std::vector<Token> tokens_[kSequences];
  std::uint32_t next_seed_ = 1;
};

TEST_P(BlockTypes, CausalCachesKeepEachTokensBytes) {
  const CausalOptions kinds[] = {{}, {.window = 12, .retained_tokens = 40}, {.chunk = 16}};
  for (const CausalOptions& kind : kinds) {
    Causal causal(*backend_, kind, Options(Causal::kSequences, 64));
    std::minstd_rand random(3);
    const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
    for (int step = 0; step < 120; ++step) {
      const int sequence = below(Causal::kSequences);
      const auto length = static_cast<int>(causal.tokens(sequence).size());
      const int what = below(8);
      if (length > 34 || (what == 0 && length > 0)) {
        const int begin = causal.FirstKept(sequence) + below(length - causal.FirstKept(sequence));
        causal.Remove(sequence, begin, std::min(length, begin + 1 + below(9)));
      } else if (what == 1 && length > 0) {
        causal.Copy(sequence, (sequence + 1) % Causal::kSequences, 1 + below(length));
      } else if (what == 2) {
        ASSERT_TRUE(causal.cache().memory()->Compact().ok());
      } else {
        causal.Forward(sequence, 1 + below(9));
      }
      if (HasFatalFailure()) return;
      for (int s = 0; s < Causal::kSequences; ++s) {
        const std::vector<Token>& tokens = causal.tokens(s);
        for (Position p = causal.FirstKept(s); p < static_cast<Position>(tokens.size()); ++p) {
          const std::int32_t cell = causal.cache().cells().history(SequenceId{s}).CellOf(p);
          ASSERT_NE(cell, RunList::kNoCell) << s << " " << p;
          for (int layer = 0; layer < kLayers; ++layer) {
            causal.cache().SetLayer(layer);
            const LayerKv storage = *causal.cache().Storage();
            ASSERT_EQ(CellBytes(storage, cell),
                      Alone(storage, tokens[static_cast<std::size_t>(p)], layer))
                << "step " << step << ", sequence " << s << ", position " << p;
          }
        }
      }
    }
  }
}

TEST_P(BlockTypes, AnEncodersOutputsAreReplacedAlone) {
  const auto cache = MakeEncoderCache({.max_tokens = 20});
  ASSERT_TRUE(cache->Init(*backend_, Options(2, 8)).ok());
  const auto start = [&](Position position) {
    const SequenceId sequences[] = {SequenceId{0}, SequenceId{1}};
    const Position positions[] = {position, position};
    const Batch batch{.positions = positions, .sequences = sequences};
    ASSERT_TRUE(cache->StartForward(batch, ForwardMode::kCompute).ok());
  };
  const auto put = [&](int sequence, std::uint32_t first, int tokens) {
    ASSERT_TRUE(cache->SetSequence(SequenceId{sequence}).ok());
    Contents contents;
    for (int i = 0; i < tokens; ++i) contents.Add(first + static_cast<std::uint32_t>(i), 0);
    ASSERT_TRUE(cache->Put(contents.K(), contents.V()).ok());
  };
  const auto expect = [&](std::size_t query, std::uint32_t first, int tokens) {
    const Visibility& visible = cache->Visible();
    int seen = 0;
    for (const HistoryRun& run :
         visible.histories[static_cast<std::size_t>(visible.history_of_query[query])]) {
      for (int i = 0; i < run.length; ++i, ++seen) {
        const LayerKv storage = *cache->Storage();
        const Token token{first + static_cast<std::uint32_t>(seen), {}};
        ASSERT_EQ(CellBytes(storage, run.cell + i), Alone(storage, token, 0)) << query << seen;
      }
    }
    ASSERT_EQ(seen, tokens);
  };
  start(0);
  put(0, 100, 19);
  put(1, 200, 7);
  expect(0, 100, 19);
  expect(1, 200, 7);
  start(1);
  put(0, 300, 3);
  expect(0, 300, 3);
  expect(1, 200, 7);
}

TEST_P(BlockTypes, ShapesWithoutWholeBlocksAreRefusedAtTheFirstPut) {
  Causal causal(*backend_, {}, Options(1, 64));
  const Position positions[] = {0};
  const SequenceId sequences[] = {SequenceId{0}};
  ASSERT_TRUE(
      causal.cache()
          .StartForward({.positions = positions, .sequences = sequences}, ForwardMode::kCompute)
          .ok());
  std::vector<float> row(160);
  const auto view = [&](std::int64_t dim) {
    return TensorView::Dense(row.data(), DType::kF32, dim, 1, 1);
  };
  const std::string types = std::string(InfoOf(GetParam().k).name) + " (K) and " +
                            std::string(InfoOf(GetParam().v).name) + " (V)";
  Status status = causal.cache().Put(view(80), view(64));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "layer 0: 1 heads of 80 (K) and 64 (V) values; must be whole blocks of " + types);
  if (GetParam().k == DType::kQ4_0) {
    status = causal.cache().Put(view(96), ValuesInKeys(view(96), 64));
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_EQ(status.message(),
              "layer 0: 1 heads of 96 (K) and 64 (V) values, V in K; k_type q4_0 cannot hold V in "
              "K; of the "
              "block types, q8_0 can");
  }
  if (GetParam().k == DType::kQ8_0) {
    status = causal.cache().Put(view(96), ValuesInKeys(view(96), 48));
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_EQ(status.message(),
              "layer 0: 1 heads of 96 (K) and 48 (V) values, V in K; must be whole blocks of q8_0 "
              "(K) and q8_0 "
              "(V)");
  }
  EXPECT_TRUE(causal.cache().Put(view(64), view(64)).ok()) << "nothing changed before";
}

TEST_P(BlockTypes, ThePlainLayoutIsRefusedAtInit) {
  const auto cache = MakeCausalCache();
  CacheOptions options = Options(1, 64);
  options.config = CacheConfig{};
  const Status status = cache->Init(*backend_, options);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "K of type " + std::string(InfoOf(GetParam().k).name) +
                                  " and V of type " + std::string(InfoOf(GetParam().v).name) +
                                  ": block types need the tiled layout");
}

}  // namespace
}  // namespace kvcache::block_types_test
