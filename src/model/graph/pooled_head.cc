#include "model/graph/pooled_head.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "base/arithmetic/doubles.h"

namespace kvcache {
namespace {

struct HeadNames {
  std::string first, norm, last;
};

HeadNames NamesOf(PooledHeadKind kind) {
  switch (kind) {
    case PooledHeadKind::kNone: return {};
    case PooledHeadKind::kBert: return {"cls", "", "cls.output"};
    case PooledHeadKind::kModernBert: return {"cls", "cls.norm", "cls.output"};
    case PooledHeadKind::kQwen3: return {"", "", "cls.output"};
    case PooledHeadKind::kDense: return {"dense_2", "", "dense_3"};
  }
  return {};
}

// Divides the exponentials of each column by their sum.
void Softmax(std::span<float> values, std::size_t rows) {
  for (; !values.empty(); values = values.subspan(rows)) {
    const std::span<float> column = values.first(rows);
    const float largest = std::ranges::max(column);
    double sum = 0.0;
    for (const float value : column) sum += arithmetic::Exp(static_cast<double>(value - largest));
    for (float& value : column) {
      value = static_cast<float>(arithmetic::Exp(static_cast<double>(value - largest)) / sum);
    }
  }
}

Status Multiply(Backend& backend, const Projection& by, const PooledHead::Adapters& adapters,
                const TensorView& x, const TensorView& y) {
  const LinearOutput out[] = {{by.weight.get(), y}};
  KVCACHE_RETURN_IF_ERROR(backend.Linear(x, out));
  if (by.bias.has_value()) KVCACHE_RETURN_IF_ERROR(backend.AddBias(y, *by.bias));
  if (adapters.bank == nullptr) return Status::Ok();
  return adapters.bank->ApplyAll(backend, x, adapters.uses, {.output = out[0]});
}

}  // namespace

Result<PooledHead> PooledHead::Load(WeightReader& reader, const LayerParams& params) {
  PooledHead head;
  head.kind_ = params.pooled_head;
  head.inputs_ = head.outputs_ = params.hidden_size;
  const HeadNames names = NamesOf(head.kind_);
  const auto take = [&](const std::string& name, std::optional<Projection>& to) -> Status {
    const std::int64_t rows = reader.Rows(name + ".weight");
    if (name.empty() || rows == 0) return Status::Ok();
    KVCACHE_ASSIGN_OR_RETURN(to, reader.Linear(name, head.outputs_, rows, Bias::kIfPresent));
    head.outputs_ = rows;
    return Status::Ok();
  };
  KVCACHE_RETURN_IF_ERROR(take(names.first, head.first_));
  if (!names.norm.empty() && reader.Has(names.norm + ".weight")) {
    KVCACHE_ASSIGN_OR_RETURN(
        head.norm_, reader.LayerNorm(names.norm, head.outputs_, params.norm_epsilon, Bias::kNone));
  }
  KVCACHE_RETURN_IF_ERROR(take(names.last, head.last_));
  return head;
}

Status PooledHead::Activate(Backend& backend, const TensorView& x) const {
  switch (kind_) {
    case PooledHeadKind::kBert: return backend.SoftCap(x, 1.0f);  // tanh
    case PooledHeadKind::kModernBert: return backend.Activate(x, Activation::kGelu);
    default: return Status::Ok();
  }
}

Status PooledHead::Run(Backend& backend, const float* states, std::int64_t count,
                       const Adapters& adapters, float* out) {
  if (!first_ && !norm_ && !last_) {
    std::copy(states, states + inputs_ * count, out);
    return Status::Ok();
  }
  for (std::int64_t at = 0; at < count; at += kColumns) {
    KVCACHE_RETURN_IF_ERROR(RunColumns(backend, states + at * inputs_,
                                       std::min(count - at, kColumns), adapters,
                                       out + at * outputs_));
  }
  return Status::Ok();
}

Status PooledHead::RunColumns(Backend& backend, const float* states, std::int64_t count,
                              const Adapters& adapters, float* out) {
  const std::int64_t width = first_ ? first_->weight->outputs() : 0;
  const std::int64_t results = last_ ? outputs_ : 0;
  KVCACHE_RETURN_IF_ERROR(values_.Reserve(backend, (inputs_ + width + results) * count));
  TensorView x = values_.At(0, inputs_, count);
  KVCACHE_RETURN_IF_ERROR(backend.CopyFromHost(
      std::as_bytes(std::span(states, static_cast<std::size_t>(inputs_ * count))), x));
  if (first_) {
    const TensorView y = values_.At(inputs_ * count, width, count);
    KVCACHE_RETURN_IF_ERROR(Multiply(backend, *first_, adapters, x, y));
    KVCACHE_RETURN_IF_ERROR(Activate(backend, y));
    x = y;
  }
  if (norm_) {
    KVCACHE_RETURN_IF_ERROR(backend.Center(x, x));
    KVCACHE_RETURN_IF_ERROR(backend.RmsNorm(x, norm_->weight, norm_->epsilon, x));
  }
  if (last_) {
    const TensorView y = values_.At((inputs_ + width) * count, outputs_, count);
    KVCACHE_RETURN_IF_ERROR(Multiply(backend, *last_, adapters, x, y));
    x = y;
  }
  const std::span<float> values(out, static_cast<std::size_t>(outputs_ * count));
  KVCACHE_RETURN_IF_ERROR(backend.CopyToHost(x, std::as_writable_bytes(values)));
  if (last_ && kind_ == PooledHeadKind::kQwen3) {
    Softmax(values, static_cast<std::size_t>(outputs_));
  }
  return Status::Ok();
}

}  // namespace kvcache
