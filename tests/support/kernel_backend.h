// A ReferenceBackend that runs its calls on another backend, so that the conformance kit checks that one's
// kernels. Failures happen and bytes are counted as in ReferenceBackend.
//
// Keys are shifted by ReferenceBackend, since the reference models compute a shift without fused
// operations.
//
// REQUIRES: the host can read and write the memory of the other backend's buffers. Its kernels need not read
// the host's: batches are copied to buffers first.
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "support/reference_backend.h"

namespace kvcache::testing {

class KernelBackend : public ReferenceBackend {
 public:
  explicit KernelBackend(std::unique_ptr<KvBackend> kernels) : kernels_(std::move(kernels)) {}

  std::string_view name() const override { return kernels_->name(); }
  std::string_view tile_format() const override { return kernels_->tile_format(); }
  CacheConfig preferred_cache_config() const override { return kernels_->preferred_cache_config(); }
  Status CheckKvTypes(DType k_type, DType v_type, KvLayout layout) const override {
    return kernels_->CheckKvTypes(k_type, v_type, layout);
  }
  Result<std::unique_ptr<Buffer>> Allocate(std::size_t size_bytes) override;
  Status StoreKv(const LayerKv& layer, const TensorView& k, const TensorView& v,
                 std::span<const CellRun> cells) override;
  Status CopyCells(const LayerKv& layer, std::span<const CellMove> moves) override;
  Status TransferCells(const LayerKv& from, const LayerKv& to,
                       std::span<const CellMove> moves) override;
  Status CopyValues(const TensorView& from, const TensorView& to) override;
  Status CopyToHost(const TensorView& from, std::span<std::byte> to) override;
  Status CopyFromHost(std::span<const std::byte> from, const TensorView& to) override;

 private:
  // Returns the view of a copy in a buffer, which `staged` keeps, unless the kernels can read the view.
  Result<TensorView> Readable(const TensorView& view, std::vector<std::unique_ptr<Buffer>>& staged);

  std::unique_ptr<KvBackend> kernels_;
  std::shared_ptr<std::map<const std::byte*, std::size_t>> buffers_ =
      std::make_shared<std::map<const std::byte*, std::size_t>>();  // that are lent
};

}  // namespace kvcache::testing
