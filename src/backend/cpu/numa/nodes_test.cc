// The backend over invented memory nodes: equal bits, and which node has what its threads read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/attention/attention_testing.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/kv/cell_nodes.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/linear/linear_call.h"
#include "backend/cpu/linear/linear_weight.h"
#include "backend/cpu/linear/pack_weight.h"
#include "backend/cpu/linear/weight_nodes.h"
#include "backend/cpu/testing.h"
#include "kvcache/panel_store.h"
#include "platform/aligned_buffer.h"
#include "platform/mapped_file.h"
#include "platform/numa/numa_testing.h"

namespace kvcache::cpu::nodes_test {
namespace {

using kvcache::testing::InventedNodes;
using kvcache::testing::InventedNuma;

constexpr std::int64_t kPage = 4096;

// (nodes, threads)
class OnNodesTest : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  void SetUp() override { InventedNuma::Here() = 0; }

  InventedNuma system_;
  CpuBackend one_{1};
  CpuBackend nodes_{InventedNodes(std::get<0>(GetParam()), std::get<1>(GetParam())), system_};
};

INSTANTIATE_TEST_SUITE_P(Nodes, OnNodesTest,
                         ::testing::Values(std::tuple(1, 3), std::tuple(2, 2), std::tuple(2, 5),
                                           std::tuple(4, 7), std::tuple(4, 32)));

// Returns the products of the matrices of a stack, in two groups, and of a single matrix.
std::vector<float> Products(Backend& backend, DType dtype, std::int64_t tokens) {
  constexpr std::int64_t kInputs = 512;
  constexpr std::int64_t kOutputs = 200;  // the last panel is not full
  constexpr std::int64_t kMatrices = 5;
  const auto bytes = testing::RandomWeights(dtype, kInputs * kOutputs * kMatrices, 7);
  const auto one = testing::RandomWeights(dtype, kInputs * 1040, 8);
  const auto x = testing::RandomValues(kInputs * tokens, 9);
  const auto stack = std::move(backend.MakeLinear(TensorView::Dense(bytes.data(), dtype, kInputs,
                                                                    kOutputs, kMatrices)))
                         .value();
  const auto single =
      std::move(backend.MakeLinear(TensorView::Dense(one.data(), dtype, kInputs, 1040))).value();
  std::vector<float> y(static_cast<std::size_t>((kOutputs * kMatrices + 1040) * tokens), -1.0f);
  std::vector<LinearOutput> outputs;
  float* at = y.data();
  for (std::int64_t matrix = 0; matrix < kMatrices; ++matrix, at += kOutputs * tokens) {
    outputs.push_back({.weight = stack.get(),
                       .y = TensorView::Dense(at, DType::kF32, kOutputs, tokens),
                       .matrix = matrix});
  }
  outputs.push_back(
      {.weight = single.get(), .y = TensorView::Dense(at, DType::kF32, 1040, tokens)});
  const TensorView in = TensorView::Dense(x.data(), DType::kF32, kInputs, tokens);
  const std::span<const LinearOutput> all(outputs);
  const LinearGroup groups[] = {{in, all.first(2)}, {in, all.subspan(2)}};
  for (int pass = 0; pass < 2; ++pass) EXPECT_TRUE(backend.LinearGroups(groups).ok());
  return y;
}

TEST_P(OnNodesTest, LinearLayersHaveTheSameBits) {
  for (const DType dtype : testing::kWeightTypes) {
    for (const std::int64_t tokens : {1, 40}) {
      EXPECT_EQ(Products(nodes_, dtype, tokens), Products(one_, dtype, tokens))
          << InfoOf(dtype).name << " " << tokens;
    }
  }
}

const SceneOptions kScenes[] = {
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kTiled},
    {{8, 32, 32}, 8, DType::kQ8_0, DType::kQ4_0, KvLayout::kTiled},
    {{3, 32, 48}, 3, DType::kF32, DType::kBF16, KvLayout::kTiled},
    {{1, 48, 36, true}, 4, DType::kBF16, DType::kBF16, KvLayout::kTiled},
    {{2, 32, 48}, 4, DType::kF16, DType::kF32, KvLayout::kPlain},
};

// 1 and 6 tokens of a sequence are decode, 40 are prefill.
TEST_P(OnNodesTest, AttentionHasTheSameBits) {
  const std::vector<std::vector<HistoryRun>> histories = {
      {{0, 3, 150}, {200, 1700, 440}, {640, 300, 460}}, {{0, 2200, 2900}}, {}};
  for (const SceneOptions& options : kScenes) {
    Scene scene(options, histories);
    scene.Fill(one_);
    Scene on_nodes(options, histories);
    on_nodes.Fill(nodes_);
    for (const int tokens : {1, 6, 40}) {
      std::vector<QueryAt> batch;
      for (int i = 0; i < tokens; ++i) {
        batch.push_back({0, 1099 - i});
        batch.push_back({1, 2899 - i});
        batch.push_back({2, 5});
      }
      EXPECT_TRUE(SameBits(Attend(nodes_, on_nodes, batch, {}), Attend(one_, scene, batch, {})))
          << InfoOf(options.k_type).name << " " << tokens;
    }
  }
}

// Cells of a layer, in memory that a test owns.
struct Cells {
  explicit Cells(KvShape shape, DType type, std::int64_t count = 512) {
    layer = {
        .shape = shape, .k_type = type, .v_type = type, .layout = KvLayout::kTiled, .cells = count};
    k = std::move(AlignedBuffer::Make(static_cast<std::size_t>(layer.KBytes()))).value();
    v = std::move(AlignedBuffer::Make(static_cast<std::size_t>(layer.VBytes()))).value();
    layer.k = k.data();
    layer.v = v.data();
  }
  std::string bytes() const {
    return std::string(reinterpret_cast<const char*>(k.data()), k.size_bytes()) +
           std::string(reinterpret_cast<const char*>(v.data()), v.size_bytes());
  }

  LayerKv layer;
  AlignedBuffer k, v;
};

TEST_P(OnNodesTest, StoredAndCopiedCellsHaveTheSameBytes) {
  for (const KvShape shape : {KvShape{8, 32, 64}, KvShape{3, 32, 32}, KvShape{1, 64, 32}}) {
    for (const DType type : {DType::kF16, DType::kQ8_0}) {
      std::string bytes[2];
      for (const bool on_nodes : {false, true}) {
        CpuBackend& backend = on_nodes ? nodes_ : one_;
        Cells cells(shape, type);
        for (const std::int64_t tokens : {1, 200}) {
          const auto k = testing::RandomValues(shape.k_dim * shape.kv_heads * tokens, 1);
          const auto v = testing::RandomValues(shape.v_dim * shape.kv_heads * tokens, 2);
          const auto count = static_cast<std::int32_t>(tokens);
          const CellRun runs[] = {{5, count / 2}, {300, count - count / 2}};
          EXPECT_TRUE(
              backend
                  .StoreKv(
                      cells.layer,
                      TensorView::Dense(k.data(), DType::kF32, shape.k_dim, shape.kv_heads, tokens),
                      TensorView::Dense(v.data(), DType::kF32, shape.v_dim, shape.kv_heads, tokens),
                      runs)
                  .ok());
        }
        const CellMove moves[] = {{.from = 300, .to = 120, .length = 90}};
        EXPECT_TRUE(backend.CopyCells(cells.layer, moves).ok());
        bytes[on_nodes ? 1 : 0] = cells.bytes();
      }
      EXPECT_TRUE(bytes[0] == bytes[1]) << shape.kv_heads << " " << InfoOf(type).name;
    }
  }
}

// --- Which node has what

// Returns the share of the bytes of matrices that are multiplied on the node that wrote their page first.
double LocalShare(const ThreadPool& pool, const LinearWeight& weight) {
  const std::int64_t panels = block::Panels(weight.outputs());
  const std::int64_t panel_bytes = block::PanelBytes(weight.dtype(), weight.inputs());
  const std::int64_t all = panels * weight.matrices();
  const auto writer = [&](std::int64_t page) {
    // The thread that packs the page's first byte.
    const std::int64_t panel = page * kPage / panel_bytes;
    int node = 0;
    while (panel >= pool.PartBegin(all, node + 1)) ++node;
    return node;
  };
  std::int64_t local = 0;
  for (std::int64_t matrix = 0; matrix < weight.matrices(); ++matrix) {
    for (int node = 0; node < pool.nodes(); ++node) {
      const RowsOfMatrix rows = RowsOfNode(pool, weight, matrix, node);
      const std::int64_t first = matrix * panels + rows.begin / block::kPanelRows;
      const std::int64_t last = matrix * panels + block::Panels(rows.end);
      for (std::int64_t at = first * panel_bytes; at < last * panel_bytes;) {
        const std::int64_t end = std::min((at / kPage + 1) * kPage, last * panel_bytes);
        if (writer(at / kPage) == node) local += end - at;
        at = end;
      }
    }
  }
  return static_cast<double>(local) / static_cast<double>(all * panel_bytes);
}

class WeightPlaces : public ::testing::TestWithParam<int> {
 protected:
  InventedNuma system_;
  ThreadPool pool_{InventedNodes(GetParam(), 2 * GetParam() + 1), system_};
  WeightMemory memory_;
};

INSTANTIATE_TEST_SUITE_P(Nodes, WeightPlaces, ::testing::Values(1, 2, 4));

TEST_P(WeightPlaces, RowsOfAllNodesAreTheMatrix) {
  for (const std::int64_t outputs : {1, 16, 40, 200, 2048}) {
    for (const std::int64_t matrices : {1, 3, 8}) {
      const CpuWeight& weight = FloatWeight(TensorView::Dense(static_cast<const float*>(nullptr),
                                                              DType::kF32, 32, outputs, matrices));
      for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
        std::int64_t row = 0;
        for (int node = 0; node < GetParam(); ++node) {
          const RowsOfMatrix rows = RowsOfNode(pool_, weight, matrix, node);
          EXPECT_EQ(rows.begin, row);
          EXPECT_GE(rows.end, rows.begin);
          row = rows.end;
        }
        EXPECT_EQ(row, outputs);
      }
    }
  }
}

TEST_P(WeightPlaces, BytesOfANodeAreItsRowsOfAllMatrices) {
  for (const std::int64_t outputs : {1, 40, 200, 2048}) {
    for (const std::int64_t matrices : {1, 3, 8}) {
      const std::vector<float> rows(static_cast<std::size_t>(32 * outputs * matrices));
      const FloatWeight weight(TensorView::Dense(rows.data(), DType::kF32, 32, outputs, matrices));
      const std::byte* at = weight.bytes().data();
      for (int node = 0; node < GetParam(); ++node) {
        std::int64_t own = 0;
        for (std::int64_t matrix = 0; matrix < matrices; ++matrix) {
          const RowsOfMatrix of_matrix = RowsOfNode(pool_, weight, matrix, node);
          own += of_matrix.end - of_matrix.begin;
        }
        const auto part = BytesOfNode(pool_, weight, {weight.bytes(), 32 * 4}, node);
        EXPECT_EQ(part.data(), at);
        EXPECT_EQ(part.size(), static_cast<std::size_t>(own * 32 * 4));
        at += part.size();
      }
      EXPECT_EQ(at, weight.bytes().data() + weight.bytes().size());
    }
  }
}

TEST_P(WeightPlaces, PackedWeightsAreReadWhereTheyWereWritten) {
  struct Case {
    std::int64_t inputs, outputs, matrices;
  };
  for (const Case& each : {Case{2048, 2048, 1}, Case{1024, 4096, 1}, Case{512, 768, 32}}) {
    const auto bytes =
        testing::RandomWeights(DType::kQ8_0, each.inputs * each.outputs * each.matrices, 3);
    const TensorView w =
        TensorView::Dense(bytes.data(), DType::kQ8_0, each.inputs, each.outputs, each.matrices);
    const BlockWeight weight(w, std::move(PackWeight(pool_, memory_, w)).value());
    EXPECT_GE(LocalShare(pool_, weight), 0.99) << each.inputs << " x " << each.outputs;
  }
}

// Each task of a call is at home on the node of its rows, and each node has tasks in proportion.
TEST_P(WeightPlaces, TasksAreAtHomeWithTheirRows) {
  const auto bytes = testing::RandomWeights(DType::kQ4_0, 1024 * 2048, 3);
  const TensorView w = TensorView::Dense(bytes.data(), DType::kQ4_0, 1024, 2048);
  const auto weight = std::move(MakeLinear(pool_, memory_, w)).value();
  std::vector<float> x(1024), y(2048);
  const LinearOutput output{.weight = weight.get(),
                            .y = TensorView::Dense(y.data(), DType::kF32, 2048, 1)};
  const LinearGroup group{TensorView::Dense(x.data(), DType::kF32, 1024, 1), {&output, 1}};
  LinearCall call(pool_, {&group, 1});
  Workspace workspace;
  ASSERT_TRUE(call.Reserve(workspace).ok());
  ASSERT_EQ(call.parts().size(), static_cast<std::size_t>(GetParam()));
  for (int node = 0; node < GetParam(); ++node) {
    const LinearPart& part = call.parts()[static_cast<std::size_t>(node)];
    EXPECT_EQ(part.node, node);
    EXPECT_EQ(part.end, call.ends()[static_cast<std::size_t>(node)]);
    const RowsOfMatrix rows = RowsOfNode(pool_, *weight, 0, node);
    EXPECT_NEAR(static_cast<double>(part.end - part.first_task) /
                    static_cast<double>(call.parts().back().end),
                static_cast<double>(rows.end - rows.begin) / 2048, 0.1);
  }
}

// Keeps panels in memory; they are never damaged.
class KeptStore final : public PanelStore {
 public:
  const std::byte* Find(const TensorView& /*w*/, std::size_t size_bytes) override {
    return bytes.size_bytes() == size_bytes ? bytes.data() : nullptr;
  }
  void Keep(const TensorView& /*w*/, std::shared_ptr<const std::byte> panels,
            std::size_t size_bytes) override {
    bytes = std::move(AlignedBuffer::MakePaged(size_bytes)).value();
    std::memcpy(bytes.data(), panels.get(), size_bytes);
  }
  Pieces PiecesOf(const std::byte* panels, std::size_t size_bytes) const override {
    const std::int64_t at = panels - bytes.data();
    return {at / kPage, (at + static_cast<std::int64_t>(size_bytes) + kPage - 1) / kPage};
  }
  bool CheckPiece(std::int64_t /*piece*/) override { return true; }

  AlignedBuffer bytes;
};

// Multiplies all matrices twice, and returns the moves.
std::vector<InventedNuma::Move> MovesOf(CpuBackend& backend, InventedNuma& system,
                                        const LinearWeight& weight) {
  std::vector<float> x(static_cast<std::size_t>(weight.inputs()));
  std::vector<float> y(static_cast<std::size_t>(weight.outputs()));
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int64_t matrix = 0; matrix < weight.matrices(); ++matrix) {
      const LinearOutput output{.weight = &weight,
                                .y = TensorView::Dense(y.data(), DType::kF32, weight.outputs(), 1),
                                .matrix = matrix};
      EXPECT_TRUE(
          backend.Linear(TensorView::Dense(x.data(), DType::kF32, weight.inputs(), 1), {&output, 1})
              .ok());
    }
  }
  return system.moves();
}

// There is a move for each node: moves are side by side in memory, cover `bytes` once, and are of ascending nodes in proportion.
void ExpectMovesOf(const std::vector<InventedNuma::Move>& moves, std::span<const std::byte> bytes,
                   int nodes) {
  EXPECT_EQ(moves.size(), static_cast<std::size_t>(nodes));
  const std::byte* at = bytes.data();
  std::vector<std::size_t> of_node(static_cast<std::size_t>(nodes));
  int last = 0;
  for (const InventedNuma::Move& move : moves) {
    EXPECT_EQ(move.begin, at);
    EXPECT_GE(move.node, last);
    at += move.size_bytes;
    last = move.node;
    of_node[static_cast<std::size_t>(move.node)] += move.size_bytes;
  }
  EXPECT_EQ(at, bytes.data() + bytes.size());
  for (const std::size_t part : of_node) {
    EXPECT_NEAR(static_cast<double>(part) / static_cast<double>(bytes.size()), 1.0 / nodes, 0.05);
  }
}

TEST(MappedWeights, KeptPanelsMoveToTheirNodesOnce) {
  for (const std::int64_t matrices : {1, 6}) {
    const auto bytes = testing::RandomWeights(DType::kQ8_0, 512 * 1024 * matrices, 5);
    const TensorView w = TensorView::Dense(bytes.data(), DType::kQ8_0, 512, 1024, matrices);
    const auto store = std::make_shared<KeptStore>();
    {
      CpuBackend packs(1);
      packs.UsePanels(store);
      ASSERT_TRUE(packs.MakeLinear(w).ok());
    }
    InventedNuma system;
    CpuBackend backend(InventedNodes(2, 4), system);
    backend.UsePanels(store);
    const auto weight = std::move(backend.MakeLinear(w)).value();
    EXPECT_TRUE(system.moves().empty()) << "nobody has read them yet";
    ExpectMovesOf(MovesOf(backend, system, *weight),
                  {store->bytes.data(), store->bytes.size_bytes()}, 2);
  }
}

// A stack of f16 matrices in place, in a mapped file and on the heap.
struct RowsInPlace {
  explicit RowsInPlace(std::int64_t count)
      : matrices(count), rows(testing::RandomWeights(DType::kF16, 512 * 1000 * count, 5)) {
    const std::string path = ::testing::TempDir() + "nodes_test_rows";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(rows.data()),
               static_cast<std::streamsize>(rows.size()));
    file = std::move(MappedFile::Open(path)).value();
    std::filesystem::remove(path);  // the mapping stays
  }
  std::vector<InventedNuma::Move> Moves(std::span<const std::byte> bytes,
                                        std::span<const NodeThreads> nodes) const {
    InventedNuma system;
    CpuBackend backend(nodes, system);
    const auto weight = std::move(backend.MakeLinear(TensorView::Dense(bytes.data(), DType::kF16,
                                                                       512, 1000, matrices)))
                            .value();
    return MovesOf(backend, system, *weight);
  }

  std::int64_t matrices;
  std::vector<std::byte> rows;
  MappedFile file;
};

TEST(MappedWeights, RowsInPlaceMoveToTheirNodesOnce) {
  for (const std::int64_t matrices : {1, 6, 24}) {
    const RowsInPlace stack(matrices);
    ExpectMovesOf(stack.Moves(stack.file.bytes(), InventedNodes(2, 4)), stack.file.bytes(), 2);
  }
}

TEST(MappedWeights, RowsOnTheHeapStayThere) {
  const RowsInPlace stack(6);
  EXPECT_TRUE(stack.Moves(stack.rows, InventedNodes(2, 4)).empty());
}

TEST(MappedWeights, RowsOfMergedNodesStayWhereTheyAre) {
  const RowsInPlace stack(6);
  std::vector<NodeThreads> nodes = InventedNodes(2, 4);
  nodes[0].is_merged = true;
  const auto moves = stack.Moves(stack.file.bytes(), nodes);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].node, 1);
  nodes[1].is_merged = true;
  EXPECT_TRUE(stack.Moves(stack.file.bytes(), nodes).empty());
}

TEST(MappedWeights, ARefusalChangesNothing) {
  InventedNuma system;
  system.move_error = "mbind: Operation not permitted";
  system.pin_error = "sched_setaffinity: Operation not permitted";
  CpuBackend one(1);
  CpuBackend backend(InventedNodes(2, 4), system);
  EXPECT_EQ(Products(backend, DType::kBF16, 3), Products(one, DType::kBF16, 3));
}

// Returns the share of decode attention's bytes that are read on the node that stored them, for one query of a history.
double AttentionShare(const ThreadPool& pool, const KvShape& shape, std::int32_t history,
                      int threads) {
  const LayerKv layer{.shape = shape,
                      .k_type = DType::kF16,
                      .v_type = DType::kF16,
                      .layout = KvLayout::kTiled,
                      .cells = 1 << 17};
  const HistoryRun run{0, 32, history};
  const std::span<const HistoryRun> runs(&run, 1);
  const Position position = history - 1;
  const std::int32_t sequence = 0;
  const Visibility visibility{
      .positions = {&position, 1}, .history_of_query = {&sequence, 1}, .histories = {&runs, 1}};
  AttentionPlan plan;
  plan.Build(layer, 4, threads, visibility);
  const ThreadPool::Ends ends = plan.SortByNodes(pool, layer, visibility);
  std::int64_t local = 0;
  std::int64_t all = 0;
  int node = 0;
  for (std::size_t i = 0; i < plan.tasks().size(); ++i) {
    while (static_cast<std::int64_t>(i) >= ends[static_cast<std::size_t>(node)]) ++node;
    const AttentionTask& task = plan.tasks()[i];
    for (int cell = task.part * kSplitPositions;
         cell < std::min((task.part + task.count) * kSplitPositions, history); ++cell) {
      ++all;
      if (NodeOfCells(pool, layer, task.kv_head, run.cell + cell) == node) ++local;
    }
  }
  EXPECT_EQ(all, std::int64_t{history} * shape.kv_heads);
  return static_cast<double>(local) / static_cast<double>(all);
}

TEST(CellPlaces, AttentionReadsCellsWhereTheyWereStored) {
  InventedNuma system;
  for (const int nodes : {2, 4}) {
    ThreadPool pool(InventedNodes(nodes, 4 * nodes), system);
    for (const std::int32_t history : {100, 1024, 5000, 40'000}) {
      EXPECT_EQ(AttentionShare(pool, {8, 128, 128}, history, pool.threads()), 1.0);
      // Fewer heads than nodes: tasks are cut by positions, and turns of nodes by cells.
      EXPECT_GE(AttentionShare(pool, {1, 576, 512, true}, history, pool.threads()), 0.85)
          << nodes << " nodes, " << history << " positions";
    }
  }
}

TEST(CellPlaces, HeadsAndTurnsAreEven) {
  InventedNuma system;
  ThreadPool pool(InventedNodes(4, 8), system);
  const LayerKv many{.shape = {8, 64, 64}};
  const LayerKv one{.shape = {1, 64, 64}};
  for (int head = 0; head < 8; ++head) EXPECT_EQ(NodeOfCells(pool, many, head, 9), head / 2);
  for (int turn = 0; turn < 8; ++turn) {
    EXPECT_EQ(NodeOfCells(pool, one, 0, turn * kCellsOfTurn + 5), turn % 4);
  }
}

}  // namespace
}  // namespace kvcache::cpu::nodes_test
