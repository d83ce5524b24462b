// A backend for describing models. It checks weights like the CPU backend but keeps only their
// shapes.
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear/linear.h"
#include "kvcache/cpu_backend.h"

namespace kvcache {
namespace {

class ShapeWeight final : public LinearWeight {
 public:
  explicit ShapeWeight(const TensorView& w) : dims_(w.dims), dtype_(w.dtype) {}

  std::int64_t inputs() const override { return dims_[0]; }
  std::int64_t outputs() const override { return dims_[1]; }
  std::int64_t matrices() const override { return dims_[2]; }
  DType dtype() const override { return dtype_; }
  std::size_t owned_bytes() const override { return 0; }

 private:
  decltype(TensorView::dims) dims_;
  DType dtype_;
};

class ShapeBackend final : public cpu::CpuBackend {
 public:
  ShapeBackend() : CpuBackend(1) {}

  Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) override {
    KVCACHE_RETURN_IF_ERROR(cpu::CheckLinear(w));
    return std::unique_ptr<LinearWeight>(std::make_unique<ShapeWeight>(w));
  }
};

}  // namespace

std::unique_ptr<Backend> MakeShapeBackend() {
  return std::make_unique<ShapeBackend>();
}

}  // namespace kvcache
