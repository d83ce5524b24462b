#include "support/cache_harness.h"

#include <bit>
#include <cstring>

#include "support/reference_backend.h"

namespace kvcache::testing {
namespace {

// Hashes its arguments to [-1, 1).
float Mix(std::uint32_t content, int layer, int kind, int index) {
  std::uint64_t x = (std::uint64_t{content} << 32) ^ (static_cast<std::uint64_t>(layer) << 20) ^
                    (static_cast<std::uint64_t>(kind) << 16) ^ static_cast<std::uint64_t>(index);
  x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>((x >> 40)) * 0x1p-23f - 1.0f;
}

std::vector<float> Content(std::uint32_t content, int layer, int kind, int values) {
  std::vector<float> result;
  for (int i = 0; i < values; ++i) result.push_back(Mix(content, layer, kind, i));
  return result;
}

// A batch's rows, each followed by a gap of NaNs that must not be read.
struct Rows {
  std::vector<float> values;
  TensorView view;
};

Rows SpacedRows(const std::vector<std::vector<float>>& rows, int heads, int dim) {
  constexpr std::int64_t kGap = 3;
  const std::int64_t stride = static_cast<std::int64_t>(heads) * dim + kGap;
  Rows result;
  result.values.assign(rows.size() * stride, std::bit_cast<float>(0x7fc00000u));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::copy(rows[i].begin(), rows[i].end(), result.values.begin() + i * stride);
  }
  result.view = TensorView::Dense(result.values.data(), DType::kF32, dim, heads, rows.size());
  result.view.stride_bytes[2] = stride * static_cast<std::int64_t>(sizeof(float));
  return result;
}

std::int64_t Offset(const TensorView& view, std::int64_t a, std::int64_t b, std::int64_t c) {
  return (a * view.stride_bytes[0] + b * view.stride_bytes[1] + c * view.stride_bytes[2]) /
         InfoOf(view.dtype).block_bytes;
}

}  // namespace

std::vector<float> KeyContent(std::uint32_t content, int layer, const KvShape& shape) {
  return Content(content, layer, 0, shape.kv_heads * shape.k_dim);
}

std::vector<float> ValueContent(std::uint32_t content, int layer, const KvShape& shape) {
  if (!shape.v_in_k) return Content(content, layer, 1, shape.kv_heads * shape.v_dim);
  const std::vector<float> key = KeyContent(content, layer, shape);
  std::vector<float> value;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const auto first = key.begin() + head * shape.k_dim;
    value.insert(value.end(), first, first + shape.v_dim);
  }
  return value;
}

std::vector<float> StateContent(std::uint32_t content, int layer, int kind, std::int64_t values) {
  std::vector<float> result = Content(content, layer, 2 + kind, static_cast<int>(values));
  for (float& value : result) value = Rounded(DType::kF16, value);
  return result;
}

bool AreTrees(const TestBatch& batch) {
  if (batch.parents.empty()) return true;
  if (batch.parents.size() != batch.tokens.size() || !batch.items.empty()) return false;
  for (int i = 0; i < static_cast<int>(batch.parents.size()); ++i) {
    const int parent = batch.parents[i];
    if (parent == -1) continue;
    if (parent < -1 || parent >= i) return false;
    if (batch.tokens[parent].sequence != batch.tokens[i].sequence) return false;
    if (batch.tokens[parent].position + 1 != batch.tokens[i].position) return false;
  }
  return true;
}

Status StartForward(Cache& cache, const std::vector<TestToken>& tokens, ForwardMode mode) {
  return StartBatch(cache, {tokens, {}}, mode);
}

Status StartBatch(Cache& cache, const TestBatch& batch, ForwardMode mode) {
  const std::vector<TestToken>& tokens = batch.tokens;
  std::vector<MultimodalItem> items;
  for (const int index : batch.items) items.push_back({.index = index, .hash = 1});
  std::vector<Position> positions;
  std::vector<SequenceId> sequences;
  for (const TestToken& token : tokens) {
    positions.push_back(token.position);
    sequences.push_back(SequenceId{token.sequence});
  }
  return cache.StartForward({positions, sequences, items, batch.parents}, mode);
}

Status PutContents(Cache& cache, const std::vector<TestToken>& tokens, int layer,
                   const KvShape& shape) {
  std::vector<std::vector<float>> keys;
  std::vector<std::vector<float>> values;
  for (const TestToken& token : tokens) {
    keys.push_back(KeyContent(token.content, layer, shape));
    values.push_back(ValueContent(token.content, layer, shape));
  }
  const Rows k = SpacedRows(keys, shape.kv_heads, shape.k_dim);
  const Rows v = SpacedRows(values, shape.kv_heads, shape.v_dim);
  cache.SetLayer(layer);
  if (shape.v_in_k) return cache.Put(k.view, ValuesInKeys(k.view, shape.v_dim));
  return cache.Put(k.view, v.view);
}

std::string CellsText(std::span<const HistoryRun> runs) {
  std::string text;
  for (const HistoryRun& run : runs) {
    for (int i = 0; i < run.length; ++i) {
      if (!text.empty()) text += ' ';
      text += std::to_string(run.position + i) + "@" + std::to_string(run.cell + i);
    }
  }
  return text;
}

std::vector<std::string> MaskRows(const TensorView& mask) {
  std::vector<std::string> rows;
  for (std::int64_t row = 0; row < mask.dims[1]; ++row) {
    std::string text;
    for (std::int64_t cell = 0; cell < mask.dims[0]; ++cell) {
      const float value = LoadValue(mask.dtype, mask.data, Offset(mask, cell, row, 0));
      const auto bits = std::bit_cast<std::uint32_t>(value);
      text += bits == 0 ? '0' : bits == 0xff800000u ? '.' : '?';
    }
    rows.push_back(text);
  }
  return rows;
}

float KeyAt(const DenseKv& history, std::int64_t cell, int head, int d) {
  return LoadValue(history.k.dtype, history.k.data, Offset(history.k, d, head, cell));
}

float ValueAt(const DenseKv& history, bool transposed, std::int64_t cell, int head, int d) {
  return LoadValue(
      history.v.dtype, history.v.data,
      transposed ? Offset(history.v, cell, d, head) : Offset(history.v, d, head, cell));
}

}  // namespace kvcache::testing
