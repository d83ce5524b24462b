// The settings that attention_bench measures: layers of a cache with known keys and values, queries
// over them, and their results in double precision.
//
// Thread safety: that of ThreadPool.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/common/workspace.h"
#include "kvcache/kv.h"
#include "platform/aligned_buffer.h"
#include "platform/thread_pool.h"

namespace kvcache::bench {

// A batch of `batch` sequences of `history` tokens each. The last `queries` tokens of a sequence
// are the queries; they see a window of `window` tokens (0: all). All sequences share the first
// `shared` tokens.
struct AttentionCase {
  std::string kind;  // "decode", "shared", "window" or "prefill"
  int history = 0;
  int queries = 1;
  int batch = 1;
  int head_dim = 128;
  DType k_type = DType::kF16;
  DType v_type = DType::kF16;
  int window = 0;
  int shared = 0;

  static constexpr int kHeads = 32;
  static constexpr int kKvHeads = 8;

  bool prefill() const { return kind == "prefill"; }
  std::string Type() const;  // "f16", or "q8_0-f16" if the types of K and V differ
  std::string Name() const;
  // Returns the multiplications and additions of one of the two products over the visible pairs of
  // query and key, in units of 1e9.
  double GigaOperations() const;
  std::int64_t Cells() const { return shared + std::int64_t{batch} * (history - shared); }
  // Returns the bytes of the needed keys and values of one layer, counted once.
  std::int64_t NeededBytes() const;
  std::int64_t LayerBytes() const;  // bytes of all cells of a layer
};

// Several equal layers, used alternately, because in a model other layers and weights pass through
// the processor's caches before a layer is read again. Values repeat every kPeriod positions. Calls
// the kernels directly, so that kernel and limit run on the same threads.
class AttentionSetting {
 public:
  // Makes enough layers to hold `cold_bytes` in total, at least one. `ok()` returns whether there
  // was memory for them.
  AttentionSetting(ThreadPool& pool, const AttentionCase& c, std::int64_t cold_bytes);

  bool ok() const { return memory_.data() != nullptr; }
  int layers() const { return layers_; }

  // Runs attention over the next layer. Returns whether it succeeded.
  bool Run();

  // Returns the bytes that some runs read, or equally many others with the same placement.
  std::span<const std::byte> Memory() const;

  // Returns the largest difference from double precision over some rows. Values are below 1.
  double Error() const;
  // Returns the largest allowed difference.
  double Tolerance() const;

 private:
  static constexpr int kPeriod = 64;

  float Scale() const;
  void Store();
  void Repeat(std::byte* head, std::int64_t period_bytes, std::int64_t bytes);
  void AddQueries();
  double Key(int cell, int kv_head, int d) const;
  double Value(int cell, int kv_head, int d) const;
  std::vector<double> Query(std::size_t row) const;
  double RowError(std::size_t row) const;

  ThreadPool& pool_;
  cpu::Workspace workspace_;
  cpu::AttentionPlans plans_;
  AttentionCase case_;
  int layers_ = 1;
  int next_ = 0;
  LayerKv layer_;  // the first layer
  AlignedBuffer memory_;
  std::vector<std::array<HistoryRun, 2>> runs_;
  std::vector<std::span<const HistoryRun>> histories_;
  std::vector<Position> positions_;
  std::vector<std::int32_t> index_;
  std::vector<float> q_;
  std::vector<float> out_;
};

}  // namespace kvcache::bench
