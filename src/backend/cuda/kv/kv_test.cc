// Checks what writes, copies, moves and rotates cells: each call on random layers gives the CPU's bytes, in all
// of the layer's memory.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "backend/cuda/kv/kv_testing.h"

namespace kvcache::cuda::kv_test {
namespace {

using twins::Bytes;
using twins::LayerKind;
using twins::TwinLayer;
using twins::TwinMemory;
using twins::Twins;

class Cells : public ::testing::TestWithParam<LayerKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Cells, ::testing::ValuesIn(twins::kLayerKinds),
                         [](const auto& test) { return std::string(test.param.name); });

std::int64_t Total(const std::vector<CellRun>& runs) {
  std::int64_t total = 0;
  for (const CellRun& run : runs) total += run.length;
  return total;
}

// Rows of all heads and tokens, with a gap behind each; `memory` has them from `offset` on.
struct Rows {
  TensorView cpu;
  TensorView cuda;
};
Rows RowsAt(TwinMemory& memory, std::int64_t offset, std::int64_t dim, int heads,
            std::int64_t batch, std::int64_t row_values) {
  Rows rows;
  rows.cpu = TensorView::Dense(memory.on_cpu() + offset * 4, DType::kF32, dim, heads, batch);
  rows.cpu.stride_bytes[1] = row_values * 4;
  rows.cpu.stride_bytes[2] = row_values * 4 * heads;
  rows.cuda = rows.cpu;
  rows.cuda.data = memory.on_cuda() + offset * 4;
  return rows;
}

// Stores random keys and values in random cells, on both sides.
void StoreSome(Twins& twins, TwinLayer& layer, const std::vector<CellRun>& runs, bool hard) {
  const KvShape& shape = layer.cpu.shape;
  const std::int64_t batch = Total(runs);
  const std::int64_t row = shape.k_dim + shape.v_dim + twins.Draw(0, 3);
  const std::int64_t count = row * shape.kv_heads * batch;
  const std::vector<float> values = hard ? twins.HardValues(count) : twins.Values(count);
  TwinMemory memory = twins.Upload(std::as_bytes(std::span(values)));
  const Rows k = RowsAt(memory, 0, shape.k_dim, shape.kv_heads, batch, row);
  Rows v = RowsAt(memory, shape.k_dim, shape.v_dim, shape.kv_heads, batch, row);
  if (shape.v_in_k) {
    v.cpu = ValuesInKeys(k.cpu, shape.v_dim);
    v.cuda = ValuesInKeys(k.cuda, shape.v_dim);
  }
  ASSERT_TRUE(twins.cpu().StoreKv(layer.cpu, k.cpu, v.cpu, runs).ok());
  const Status status = twins.cuda().StoreKv(layer.cuda, k.cuda, v.cuda, runs);
  ASSERT_TRUE(status.ok()) << status.message();
}

TEST_P(Cells, StoreWritesTheCpusBytes) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Twins twins(seed);
    TwinLayer layer = twins.MakeLayer(GetParam().Draw(twins, 96));
    StoreSome(twins, layer, twins.DrawRuns(96, twins.Draw(1, 4)), seed % 2 == 0);
    ASSERT_TRUE(twins.Same(layer)) << "seed " << seed;
  }
}

TEST_P(Cells, StoreWritesManyShortRuns) {
  Twins twins(7);
  TwinLayer layer = twins.MakeLayer(GetParam().Draw(twins, 256));
  std::vector<CellRun> runs;
  for (std::int32_t cell = 255; cell >= 0; cell -= 2) runs.push_back({cell, 1});
  StoreSome(twins, layer, runs, false);
  ASSERT_TRUE(twins.Same(layer));
}

// Moves from ranges of cells to others of the same lengths, half of them in the same lanes.
std::vector<CellMove> DrawMoves(Twins& twins, std::int64_t cells_from, std::int64_t first_to,
                                std::int64_t cells_to) {
  std::vector<CellMove> moves;
  std::int32_t to = static_cast<std::int32_t>(first_to);
  for (const CellRun& run : twins.DrawRuns(cells_from, twins.Draw(1, 4))) {
    if (twins.Draw(0, 1) == 0) to += (run.cell % 16 - to % 16 + 16) % 16;
    const std::int64_t left = cells_to - to;
    if (left <= 0) break;
    moves.push_back(
        {run.cell, to, static_cast<std::int32_t>(std::min<std::int64_t>(run.length, left))});
    to += moves.back().length + twins.OneOf({0, 0, 3});
  }
  return moves;
}

TEST_P(Cells, CopyMovesTheCpusBytes) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Twins twins(seed);
    TwinLayer layer = twins.MakeLayer(GetParam().Draw(twins, 320));
    const std::vector<CellMove> moves = DrawMoves(twins, 160, 160 + twins.Draw(0, 5), 320);
    ASSERT_TRUE(twins.cpu().CopyCells(layer.cpu, moves).ok());
    const Status status = twins.cuda().CopyCells(layer.cuda, moves);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(twins.Same(layer)) << "seed " << seed;
  }
}

// To host memory in the tiled layout, and back to other cells. The host's cells that no move writes keep
// their bytes.
TEST_P(Cells, TransfersHaveTheCpusBytesOnTheHost) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Twins twins(seed);
    TwinLayer layer = twins.MakeLayer(GetParam().Draw(twins, 160));
    LayerKv like = layer.cpu;
    like.layout = KvLayout::kTiled;
    like.v_transposed = false;
    like.on_host = true;
    like.cells = twins.OneOf({64, 96, 320});
    // Two pages in host memory with the same noise: one for each backend.
    TwinLayer pages[2] = {twins.MakeLayer(like), twins.MakeLayer(like)};
    std::memcpy(pages[1].k.on_cpu(), pages[0].k.on_cpu(), pages[0].k.size);
    std::memcpy(pages[1].v.on_cpu(), pages[0].v.on_cpu(), pages[0].v.size);
    std::vector<CellMove> moves = DrawMoves(twins, 160, twins.Draw(0, 20), like.cells);
    if (seed == 1) moves = {{16, 0, 64}};
    if (seed == 2) moves = {};
    ASSERT_TRUE(twins.cpu().TransferCells(layer.cpu, pages[0].cpu, moves).ok());
    const Status out = twins.cuda().TransferCells(layer.cuda, pages[1].cpu, moves);
    ASSERT_TRUE(out.ok()) << out.message();
    const auto same = [](TwinMemory& a, TwinMemory& b) {
      return std::equal(a.on_cpu(), a.on_cpu() + a.size, b.on_cpu());
    };
    ASSERT_TRUE(same(pages[0].k, pages[1].k)) << "seed " << seed;
    ASSERT_TRUE(same(pages[0].v, pages[1].v)) << "seed " << seed;

    const std::vector<CellMove> back = DrawMoves(twins, like.cells, twins.Draw(0, 20), 160);
    ASSERT_TRUE(twins.cpu().TransferCells(pages[0].cpu, layer.cpu, back).ok());
    const Status in = twins.cuda().TransferCells(pages[1].cpu, layer.cuda, back);
    ASSERT_TRUE(in.ok()) << in.message();
    ASSERT_TRUE(twins.Same(layer)) << "seed " << seed;

    // Between two places in host memory.
    const std::vector<CellMove> across = {{3, 40, 20}};
    ASSERT_TRUE(twins.cuda().TransferCells(pages[1].cpu, pages[0].cpu, across).ok());
    ASSERT_TRUE(twins.cpu().TransferCells(pages[1].cpu, pages[1].cpu, across).ok());
    ASSERT_TRUE(same(pages[0].k, pages[1].k)) << "seed " << seed;
  }
}

// Between layers on the device of other layouts, for the float types.
TEST_P(Cells, TransfersConvertLayoutsOnTheDevice) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Twins twins(seed);
    TwinLayer from = twins.MakeLayer(GetParam().Draw(twins, 96));
    LayerKv like = from.cpu;
    like.cells = 64;
    if (!GetParam().blocks()) {
      like.layout = twins.OneOf({KvLayout::kTiled, KvLayout::kPlain});
      like.v_transposed =
          like.layout == KvLayout::kPlain && !like.shape.v_in_k && twins.Draw(0, 1) == 0;
    }
    TwinLayer to = twins.MakeLayer(like);
    const std::vector<CellMove> moves = DrawMoves(twins, 96, twins.Draw(0, 3), 64);
    ASSERT_TRUE(twins.cpu().TransferCells(from.cpu, to.cpu, moves).ok());
    const Status status = twins.cuda().TransferCells(from.cuda, to.cuda, moves);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(twins.Same(to)) << "seed " << seed;
  }
}

TEST_P(Cells, ShiftRotatesToTheCpusBytes) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Twins twins(seed);
    LayerKv like = GetParam().Draw(twins, 96);
    if (like.shape.v_in_k) like.shape.k_dim = like.shape.v_dim + (GetParam().blocks() ? 64 : 12);
    TwinLayer layer = twins.MakeLayer(like);
    StoreSome(twins, layer, {{0, 96}}, false);
    const int first_free = like.shape.v_in_k ? like.shape.v_dim : 0;
    const int pairs = twins.Draw(0, (like.shape.k_dim - first_free) / 2);
    std::vector<float> frequencies(static_cast<std::size_t>(pairs));
    for (float& frequency : frequencies) {
      frequency = std::pow(10.0f, -static_cast<float>(twins.Draw(0, 40)) / 10.0f);
    }
    const RopeParams rope = {
        .pairing = twins.OneOf({RopeParams::Pairing::kInterleaved, RopeParams::Pairing::kHalves}),
        .dims = 2 * pairs,
        .inv_freq = frequencies,
        .first = first_free + twins.Draw(0, like.shape.k_dim - first_free - 2 * pairs)};
    const Position offset = twins.OneOf({-37, 0, 1, 5000, -100000});
    const std::vector<CellRun> runs = twins.DrawRuns(96, 3);
    ASSERT_TRUE(twins.cpu().ShiftKeys(layer.cpu, runs, offset, rope).ok());
    const Status status = twins.cuda().ShiftKeys(layer.cuda, runs, offset, rope);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(twins.Same(layer)) << "seed " << seed;
  }
}

// Both backends refuse the same arguments with the same words.
TEST(CellErrors, AreTheCpus) {
  Twins twins(1);
  LayerKv like;
  like.shape = {2, 32, 32};
  like.k_type = like.v_type = DType::kF16;
  like.layout = KvLayout::kTiled;
  like.cells = 32;
  TwinLayer layer = twins.MakeLayer(like);
  const auto expect = [](const Status& cpu, const Status& cuda) {
    EXPECT_FALSE(cpu.ok());
    EXPECT_EQ(cuda.code(), cpu.code());
    EXPECT_EQ(cuda.message(), cpu.message());
  };
  TwinMemory memory = twins.Noise(4096);
  const TensorView rows = TensorView::Dense(memory.on_cpu(), DType::kF32, 32, 2, 1);
  const std::vector<CellRun> outside = {{32, 1}};
  const std::vector<CellRun> two = {{0, 2}};
  for (const std::vector<CellRun>& runs : {outside, two}) {
    expect(twins.cpu().StoreKv(layer.cpu, rows, rows, runs),
           twins.cuda().StoreKv(layer.cuda, rows, rows, runs));
  }
  const std::vector<CellMove> move = {{0, 20, 13}};
  expect(twins.cpu().CopyCells(layer.cpu, move), twins.cuda().CopyCells(layer.cuda, move));
  LayerKv other = like;
  other.shape.k_dim = 64;
  TwinLayer larger = twins.MakeLayer(other);
  const std::vector<CellMove> one = {{0, 0, 1}};
  expect(twins.cpu().TransferCells(layer.cpu, larger.cpu, one),
         twins.cuda().TransferCells(layer.cuda, larger.cuda, one));
  const std::vector<float> frequencies(17, 0.1f);
  const RopeParams rope = {.dims = 34, .inv_freq = frequencies};
  const std::vector<CellRun> first = {{0, 1}};
  expect(twins.cpu().ShiftKeys(layer.cpu, first, 1, rope),
         twins.cuda().ShiftKeys(layer.cuda, first, 1, rope));
  expect(twins.cpu().CheckKvTypes(DType::kQ8_0, DType::kQ8_0, KvLayout::kPlain),
         twins.cuda().CheckKvTypes(DType::kQ8_0, DType::kQ8_0, KvLayout::kPlain));
}

TEST(CellErrors, NameTheLayoutOfAHostLayer) {
  Twins twins(1);
  LayerKv like;
  like.shape = {1, 4, 4};
  like.cells = 16;
  TwinLayer layer = twins.MakeLayer(like);
  LayerKv host = layer.cpu;
  host.on_host = true;
  const std::vector<CellMove> one = {{0, 0, 1}};
  const Status status = twins.cuda().TransferCells(layer.cuda, host, one);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "transfer: the layer on the host must be tiled");
}

TEST(CopyValues, ConvertsToTheCpusBytes) {
  const DType types[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Twins twins(seed);
    const DType from_type = types[twins.Draw(0, 2)];
    const DType to_type = types[twins.Draw(0, 2)];
    const int dims[4] = {twins.OneOf({1, 5, 64, 1300}), twins.Draw(1, 4), twins.Draw(1, 3),
                         twins.Draw(1, 2)};
    const std::int64_t count = std::int64_t{dims[0] + 3} * dims[1] * dims[2] * dims[3];
    const std::vector<float> values = twins.HardValues(count);
    TwinMemory floats = twins.Upload(std::as_bytes(std::span(values)));
    TwinMemory source = twins.Noise(count * 4);
    TwinMemory target = twins.Noise(count * 4);
    // Convert to the source's type first, so that its values are such.
    const auto dense = [&](std::byte* data, DType type) {
      return TensorView::Dense(data, type, count);
    };
    ASSERT_TRUE(
        twins.cpu()
            .CopyValues(dense(floats.on_cpu(), DType::kF32), dense(source.on_cpu(), from_type))
            .ok());
    ASSERT_TRUE(
        twins.cuda()
            .CopyValues(dense(floats.on_cuda(), DType::kF32), dense(source.on_cuda(), from_type))
            .ok());
    ASSERT_TRUE(twins.Same(source)) << "seed " << seed;
    const auto view = [&](std::byte* data, DType type, int gap) {
      TensorView v = TensorView::Dense(data, type, dims[0], dims[1], dims[2], dims[3]);
      const std::int64_t row = (dims[0] + gap) * InfoOf(type).block_bytes;
      v.stride_bytes = {v.stride_bytes[0], row, row * dims[1], row * dims[1] * dims[2]};
      return v;
    };
    const int gap_from = twins.Draw(0, 3);
    const int gap_to = twins.Draw(0, 3);
    ASSERT_TRUE(twins.cpu()
                    .CopyValues(view(source.on_cpu(), from_type, gap_from),
                                view(target.on_cpu(), to_type, gap_to))
                    .ok());
    const Status status = twins.cuda().CopyValues(view(source.on_cuda(), from_type, gap_from),
                                                  view(target.on_cuda(), to_type, gap_to));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(twins.Same(target)) << "seed " << seed;
  }
}

// Tensors of any type with dense rows and, for float types, gaps between them.
TEST(CopyValues, GoToTheHostAndBack) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ4_0}) {
    for (const int gap : {0, 3}) {
      if (gap > 0 && type == DType::kQ4_0) continue;
      Twins twins(3);
      const std::int64_t row = BytesOf(type, 64) + gap * InfoOf(type).block_bytes;
      TwinMemory memory = twins.Noise(row * 6);
      TwinMemory other = twins.Noise(row * 6);
      const auto view = [&](std::byte* data) {
        TensorView v = TensorView::Dense(data, type, 64, 3, 2);
        v.stride_bytes = {v.stride_bytes[0], row, 3 * row, 6 * row};
        return v;
      };
      Bytes cpu(static_cast<std::size_t>(BytesOf(type, 384)));
      Bytes cuda(cpu.size());
      ASSERT_TRUE(twins.cpu().CopyToHost(view(memory.on_cpu()), cpu).ok());
      ASSERT_TRUE(twins.cuda().CopyToHost(view(memory.on_cuda()), cuda).ok());
      EXPECT_EQ(cuda, cpu);
      ASSERT_TRUE(twins.cpu().CopyFromHost(cpu, view(other.on_cpu())).ok());
      ASSERT_TRUE(twins.cuda().CopyFromHost(cuda, view(other.on_cuda())).ok());
      EXPECT_TRUE(twins.Same(other));
    }
  }
}

TEST(CopyValues, NameAHostSideOfAnotherSize) {
  Twins twins(3);
  TwinMemory memory = twins.Noise(400);
  Bytes host(396);
  const TensorView view = TensorView::Dense(memory.on_cuda(), DType::kF32, 100);
  const Status status = twins.cuda().CopyToHost(view, host);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "copy of 100 values of type f32: the host's side has 396 bytes; both must have as many");
  EXPECT_EQ(twins.cuda().CopyFromHost(host, view).message(), status.message());
}

}  // namespace
}  // namespace kvcache::cuda::kv_test
