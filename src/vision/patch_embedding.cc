#include "vision/patch_embedding.h"

#include <algorithm>

namespace kvcache::vision {

Status PatchEmbedding::Load(TowerSource& source, const VisionSettings& settings) {
  patch_values_ = settings.patch_values();
  KVCACHE_ASSIGN_OR_RETURN(
      kernel_.weight, TakeKernel(source, "v.patch_embd.weight", patch_values_, settings.width));
  if (source.reader.Has("v.patch_embd.bias")) {
    KVCACHE_ASSIGN_OR_RETURN(kernel_.bias,
                             source.reader.Vector("v.patch_embd.bias", settings.width));
  }
  const std::int64_t positions = settings.position_count;
  if (positions > 0) {
    KVCACHE_ASSIGN_OR_RETURN(
        positions_, source.reader.Table("v.position_embd.weight", settings.width, positions));
  }
  return Status::Ok();
}

void PatchEmbedding::AddPositions(Pass& pass, const PatchOrder& order, std::size_t first,
                                  const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  if (!pass.runs()) return;
  indices_.clear();
  for (std::size_t i = first; i < first + static_cast<std::size_t>(pass.batch()); ++i) {
    indices_.push_back(order.rows[i] * order.grid.columns + order.columns[i]);
  }
  pass.Embed(*positions_, indices_, h);
  pass.Add(x, h);
}

void PatchEmbedding::Run(Pass& pass, const PatchOrder& order, std::int64_t first,
                         const float* pixels, const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView patches = pass.TakeHidden(patch_values_);
  if (pass.runs()) {
    const auto size = static_cast<std::size_t>(patch_values_);
    gathered_.clear();
    for (std::int64_t i = first; i < first + pass.batch(); ++i) {
      const auto row = static_cast<std::size_t>(i);
      const auto patch =
          static_cast<std::size_t>(order.rows[row] * order.grid.columns + order.columns[row]);
      gathered_.insert(gathered_.end(), pixels + patch * size, pixels + (patch + 1) * size);
    }
    pass.CopyFromHost(gathered_.data(), patches);
  }
  pass.Linear(patches, {{kernel_, x}});
  if (positions_.has_value()) AddPositions(pass, order, static_cast<std::size_t>(first), x);
}

}  // namespace kvcache::vision
