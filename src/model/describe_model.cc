#include "model/describe_model.h"

#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear.h"
#include "base/strings.h"

namespace kvcache {
namespace {

// A matrix's shape alone.
class DescribedWeight final : public LinearWeight {
 public:
  explicit DescribedWeight(const TensorView& w) : dims_(w.dims), dtype_(w.dtype) {}

  std::int64_t inputs() const override { return dims_[0]; }
  std::int64_t outputs() const override { return dims_[1]; }
  std::int64_t matrices() const override { return dims_[2]; }
  DType dtype() const override { return dtype_; }
  std::size_t owned_bytes() const override { return 0; }

 private:
  decltype(TensorView::dims) dims_;
  DType dtype_;
};

class DescribingBackend final : public cpu::CpuBackend {
 public:
  DescribingBackend() : CpuBackend(1) {}

  Result<std::unique_ptr<LinearWeight>> MakeLinear(const TensorView& w) override {
    KVCACHE_RETURN_IF_ERROR(cpu::CheckLinear(w));
    return std::unique_ptr<LinearWeight>(std::make_unique<DescribedWeight>(w));
  }
};

}  // namespace

Result<ModelInfo> DescribeModel(const GgufFile& file) {
  DescribingBackend backend;
  KVCACHE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadModel(file, backend));
  return model->info();
}

Status CheckTokenCount(const ModelInfo& info, const Tokenizer& tokenizer) {
  if (tokenizer.vocabulary_size() == info.vocabulary) return Status::Ok();
  return {StatusCode::kCorrupt,
          StrCat("the vocabulary has ", tokenizer.vocabulary_size(), " tokens, but the output has ",
                 info.vocabulary, " rows; there must be one row for each token")};
}

}  // namespace kvcache
