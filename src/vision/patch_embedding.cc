#include "vision/patch_embedding.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::vision {

Status PatchEmbedding::Load(TowerSource& source, const VisionSettings& settings) {
  patch_values_ = settings.patch_values();
  KVCACHE_ASSIGN_OR_RETURN(
      kernel_.weight, TakeKernel(source, "v.patch_embd.weight", patch_values_, settings.width));
  if (settings.frames == 2) {
    second_kernel_.emplace();
    KVCACHE_ASSIGN_OR_RETURN(second_kernel_->weight, TakeKernel(source, "v.patch_embd.weight.1",
                                                                patch_values_, settings.width));
  }
  if (source.reader.Has("v.patch_embd.bias")) {
    KVCACHE_ASSIGN_OR_RETURN(kernel_.bias,
                             source.reader.Vector("v.patch_embd.bias", settings.width));
  }
  const std::int64_t positions = settings.position_count;
  if (settings.has_axis_positions) {
    KVCACHE_RETURN_IF_ERROR(LoadAxisPositions(source, settings));
  } else if (positions > 0) {
    KVCACHE_ASSIGN_OR_RETURN(
        positions_, source.reader.Table("v.position_embd.weight", settings.width, positions));
  }
  if (settings.interpolates_positions) {
    interpolated_side_ = static_cast<int>(std::lround(std::sqrt(static_cast<double>(positions))));
  }
  if (settings.has_first_norm) {
    auto& reader = source.reader;
    if (settings.norm == NormKind::kRms) {
      KVCACHE_ASSIGN_OR_RETURN(norm_, reader.RmsNorm("v.pre_ln", settings.width, settings.epsilon));
    } else {
      KVCACHE_ASSIGN_OR_RETURN(
          norm_, reader.LayerNorm("v.pre_ln", settings.width, settings.epsilon, Bias::kIfPresent));
    }
  }
  return Status::Ok();
}

// Two tables in one tensor: of columns, of rows.
Status PatchEmbedding::LoadAxisPositions(TowerSource& source, const VisionSettings& settings) {
  const std::string name = "v.position_embd.weight";
  const GgufTensor* const tensor = source.file.FindTensor(name);
  const std::int64_t count = settings.position_count;
  if (tensor == nullptr) return Corrupt(StrCat("tensor '", name, "' is missing"));
  const auto& dims = tensor->dims;
  if (dims[0] != settings.width || dims[1] != count || dims[2] != 2 || dims[3] != 1) {
    return Corrupt(StrCat("tensor '", name, "' has shape [", dims[0], ", ", dims[1], ", ", dims[2],
                          ", ", dims[3], "]; must be [", settings.width, ", ", count, ", 2]"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const TensorView view, tensor->View());
  const TensorView table = TensorView::Dense(view.data, view.dtype, settings.width, 2 * count);
  // Looks up no rows: a type that the backend does not support fails here.
  const TensorView none = TensorView::Dense(nullptr, DType::kF32, settings.width, 0);
  KVCACHE_RETURN_IF_ERROR(
      source.backend.Embed(table, {}, none).WithContext("tensor '" + name + "'"));
  KVCACHE_ASSIGN_OR_RETURN(positions_,
                           placed_.Place(source.backend, Backend::kBeforeLayers, table));
  axis_positions_ = static_cast<int>(count);
  source.reader.Ignore(name);  // it is taken
  return Status::Ok();
}

void PatchEmbedding::AddAxisPositions(Pass& pass, const PatchOrder& order, std::size_t first,
                                      const TensorView& x) {
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  for (const bool rows : {false, true}) {
    if (!pass.runs()) return;
    indices_.clear();
    for (std::size_t i = first; i < first + static_cast<std::size_t>(pass.batch()); ++i) {
      indices_.push_back(rows ? axis_positions_ + order.rows[i] : order.columns[i]);
    }
    pass.Embed(*positions_, indices_, h);
    pass.Add(x, h);
  }
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

// The positions are the corners of squares; a patch of the grid lies between four of them. The first and last ones of the
// two grids are the same (aligned corners).
void PatchEmbedding::AddPositionsBetween(Pass& pass, const PatchOrder& order, std::size_t first,
                                         const TensorView& x) {
  struct Place {
    int low, high;
    double share;  // of the high one
  };
  const auto place = [&](int index, int count) {
    const double at =
        count == 1 ? 0.0 : static_cast<double>(index) * (interpolated_side_ - 1) / (count - 1);
    const int low = static_cast<int>(at);
    return Place{low, std::min(low + 1, interpolated_side_ - 1), at - low};
  };
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  for (const int corner : {0, 1, 2, 3}) {
    if (!pass.runs()) return;
    indices_.clear();
    factors_.clear();
    for (std::size_t i = first; i < first + static_cast<std::size_t>(pass.batch()); ++i) {
      const Place row = place(order.rows[i], order.grid.rows);
      const Place column = place(order.columns[i], order.grid.columns);
      const bool low_row = corner < 2, low_column = corner % 2 == 0;
      indices_.push_back((low_row ? row.low : row.high) * interpolated_side_ +
                         (low_column ? column.low : column.high));
      factors_.push_back(static_cast<float>((low_row ? 1 - row.share : row.share) *
                                            (low_column ? 1 - column.share : column.share)));
    }
    pass.Embed(*positions_, indices_, h);
    pass.ScaleTokens(h, factors_);
    pass.Add(x, h);
  }
}

void PatchEmbedding::Multiply(Pass& pass, const TensorView& patches, const TensorView& x) const {
  if (!second_kernel_.has_value()) return pass.Linear(patches, {{kernel_, x}});
  const Pass::Scope scope(pass);
  const TensorView h = pass.TakeHidden(x.dims[0]);
  pass.Linear(patches, {{kernel_, x}, {*second_kernel_, h}});
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
  Multiply(pass, patches, x);
  if (interpolated_side_ > 0) {
    AddPositionsBetween(pass, order, static_cast<std::size_t>(first), x);
  } else if (axis_positions_ > 0) {
    AddAxisPositions(pass, order, static_cast<std::size_t>(first), x);
  } else if (positions_.has_value()) {
    AddPositions(pass, order, static_cast<std::size_t>(first), x);
  }
  if (norm_.has_value()) pass.Normalize(x, *norm_, x);
}

}  // namespace kvcache::vision
