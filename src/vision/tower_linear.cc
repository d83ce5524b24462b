#include "vision/tower_linear.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::vision {
namespace {

void ClipValues(std::span<float> values, float min, float max) {
  for (float& value : values) value = std::clamp(value, min, max);  // a NaN stays
}

// Brings x into the limits. Backends have no such operation: in another memory than the host's the values travel.
Status Clip(Backend& backend, const TensorView& x, float min, float max) {
  const auto count = static_cast<std::size_t>(x.elements());
  if (backend.works_in_host_memory()) {
    ClipValues({x.as<float>(), count}, min, max);
    return Status::Ok();
  }
  return Guarded("no memory for values that are clipped", [&]() -> Status {
    std::vector<float> values(count);
    KVCACHE_RETURN_IF_ERROR(backend.CopyToHost(x, std::as_writable_bytes(std::span(values))));
    ClipValues(values, min, max);
    return backend.CopyFromHost(std::as_bytes(std::span(values)), x);
  });
}

void MultiplyWithin(Pass& pass, const TensorView& x, const TowerProduct& product) {
  const ClipLimits& limits = *product.by.limits;
  const Pass::Scope scope(pass);
  const TensorView clipped = pass.Take(x.dims[0], x.dims[1], x.dims[2]);
  pass.Copy(x, clipped);
  if (pass.runs()) pass.Check(Clip(pass.backend(), clipped, limits.input_min, limits.input_max));
  pass.Linear(clipped, {{product.by.by, product.to}});
  if (pass.runs()) {
    pass.Check(Clip(pass.backend(), product.to, limits.output_min, limits.output_max));
  }
}

// Returns a tensor of one value.
Result<float> Scalar(TowerSource& source, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> value, source.reader.Floats(name, 1));
  if (std::isnan(value[0])) return Corrupt(StrCat("tensor '", name, "' is not a number"));
  return value[0];
}

Result<ClipLimits> TakeLimits(TowerSource& source, const std::string& name) {
  ClipLimits limits{};
  KVCACHE_ASSIGN_OR_RETURN(limits.input_min, Scalar(source, name + ".input_min"));
  KVCACHE_ASSIGN_OR_RETURN(limits.input_max, Scalar(source, name + ".input_max"));
  KVCACHE_ASSIGN_OR_RETURN(limits.output_min, Scalar(source, name + ".output_min"));
  KVCACHE_ASSIGN_OR_RETURN(limits.output_max, Scalar(source, name + ".output_max"));
  if (limits.input_min <= limits.input_max && limits.output_min <= limits.output_max) return limits;
  return Corrupt(StrCat("tensor '", name, ".weight' has inputs from ", limits.input_min, " to ",
                        limits.input_max, " and results from ", limits.output_min, " to ",
                        limits.output_max, "; both must be in ascending order"));
}

}  // namespace

Result<TowerLinear> TowerLinear::Load(TowerSource& source, const std::string& name,
                                      std::int64_t inputs, std::int64_t outputs) {
  TowerLinear linear;
  KVCACHE_ASSIGN_OR_RETURN(linear.by,
                           source.reader.Linear(name, inputs, outputs, Bias::kIfPresent));
  for (const char* const limit : {".input_min", ".input_max", ".output_min", ".output_max"}) {
    if (!source.reader.Has(name + limit)) continue;
    KVCACHE_ASSIGN_OR_RETURN(linear.limits, TakeLimits(source, name));
    break;
  }
  return linear;
}

void Multiply(Pass& pass, const TensorView& x, std::initializer_list<TowerProduct> products) {
  const auto first = products.begin();
  const bool within = std::ranges::any_of(
      products, [](const TowerProduct& product) { return product.by.limits.has_value(); });
  if (!within && products.size() == 2) {
    // One call converts x for both.
    return pass.Linear(x, {{first[0].by.by, first[0].to}, {first[1].by.by, first[1].to}});
  }
  for (const TowerProduct& product : products) {
    if (product.by.limits.has_value()) {
      MultiplyWithin(pass, x, product);
    } else {
      pass.Linear(x, {{product.by.by, product.to}});
    }
  }
}

}  // namespace kvcache::vision
