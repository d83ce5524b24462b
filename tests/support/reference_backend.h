// A simple KvBackend for tests: scalar code, one value at a time, over host memory.
//
// It serves every layout and float type, checks its arguments (ranges, sums, overlaps; kInternal if
// wrong), counts the bytes that it allocated, and fails on demand. A failing store, copy or shift
// does half of its work first, as a real one might.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "kvcache/kv_backend.h"

namespace kvcache::testing {

// Access to the values of one layer. `index` counts values from the start of K or V.
std::int64_t KIndex(const LayerKv& layer, std::int32_t cell, int head, int d);
std::int64_t VIndex(const LayerKv& layer, std::int32_t cell, int head, int d);
float LoadValue(DType type, const std::byte* base, std::int64_t index);
float LoadV(const LayerKv& layer, std::int32_t cell, int head, int d);  // also if V is in K
void StoreValue(DType type, std::byte* base, std::int64_t index, float value);

// Return a cell's key and value, head after head.
std::vector<float> ReadKey(const LayerKv& layer, std::int32_t cell);
std::vector<float> ReadValue(const LayerKv& layer, std::int32_t cell);

// Returns `value` rounded to `type`.
float Rounded(DType type, float value);

// Rotates one head's key by `offset` positions, in f32.
void RotateKey(std::span<float> key, Position offset, const RopeParams& rope);

class ReferenceBackend : public KvBackend {
 public:
  enum class Call : std::uint8_t { kAllocate, kStore, kCopy, kTransfer, kShift, kValues, kAny };

  explicit ReferenceBackend(const CacheConfig& config = {}) : config_(config) {}
  ~ReferenceBackend() override;

  // Makes the n-th call of this kind from now fail (1: the next; 0: none).
  void FailNth(Call call, int n) {
    failing_ = call;
    countdown_ = n;
  }
  bool failure_pending() const { return countdown_ > 0; }

  std::int64_t live_bytes() const { return *live_bytes_; }

  std::string_view name() const override { return "reference"; }
  CacheConfig preferred_cache_config() const override { return config_; }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override;
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;
  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override;
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override;
  Status TransferCells(const LayerKv& from, const LayerKv& to,
                       std::span<const CellMove> moves) override;
  Status CopyValues(const TensorView& from, const TensorView& to) override;
  Status CopyToHost(const TensorView& from, std::span<std::byte> to) override;
  Status CopyFromHost(std::span<const std::byte> from, const TensorView& to) override;
  Status ShiftKeys(const LayerKv& layer, std::span<const CellRun> cells, Position offset,
                   const RopeParams& rope) override;
  Status Attention(const LayerKv& layer, const TensorView& q, const Visibility& visibility,
                   const AttentionOptions& options, const TensorView& out) override;

 protected:
  // Returns whether this call is the one that fails, and counts it.
  bool Fails(Call call);
  std::shared_ptr<std::int64_t> lent_bytes() { return live_bytes_; }

 private:
  Status CopyHost(const std::byte* from, std::byte* to, const TensorView& view, std::size_t bytes);

  CacheConfig config_;
  Call failing_ = Call::kAny;
  int countdown_ = 0;
  std::shared_ptr<std::int64_t> live_bytes_ = std::make_shared<std::int64_t>(0);
};

}  // namespace kvcache::testing
