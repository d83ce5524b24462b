// gemma4v (Gemma 4; transformers' modeling_gemma4.py, 2026): averaged states, scaled by sqrt(width), moved and scaled by
// values of the training's statistics where the file has them, a norm without weights, a matrix.
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "vision/token_head.h"

namespace kvcache::vision {
namespace {

class Gemma4Head final : public TokenHead {
 public:
  Status Load(TowerSource& source, const VisionSettings& settings) {
    patches_ = settings.merge * settings.merge;
    factor_ = static_cast<float>(std::sqrt(static_cast<double>(settings.width)));
    auto& reader = source.reader;
    if (reader.Has("v.std_bias") || reader.Has("v.std_scale")) {
      KVCACHE_ASSIGN_OR_RETURN(bias_, reader.Vector("v.std_bias", settings.width));
      KVCACHE_ASSIGN_OR_RETURN(scale_, reader.Table("v.std_scale", settings.width, 1));
    }
    KVCACHE_ASSIGN_OR_RETURN(
        ones_, PlacedVector::Make(source.backend, Backend::kBeforeLayers, settings.width, 1.0F));
    norm_ = Norm{ones_.view(), settings.epsilon};
    KVCACHE_ASSIGN_OR_RETURN(matrix_, reader.Linear("mm.input_projection", settings.width,
                                                    settings.embedding_width, Bias::kIfPresent));
    return Status::Ok();
  }

  void Run(Pass& pass, const TensorView& x, const TensorView& out) const override {
    const Pass::Scope scope(pass);
    const TensorView h = pass.TakeHidden(x.dims[0]);
    if (pass.runs()) pass.Check(AverageColumns(pass.backend(), x, patches_, h));
    pass.Scale(h, factor_);
    if (bias_.has_value()) MoveAndScale(pass, h);
    pass.RmsNorm(h, norm_, h);
    pass.Linear(h, {{matrix_, out}});
  }

 private:
  // h = (h - bias) * scale. Minus and a sum give the bits of the difference; the scales come beside each other as rows of
  // a table do.
  void MoveAndScale(Pass& pass, const TensorView& h) const {
    const Pass::Scope scope(pass);
    const TensorView scales = pass.TakeHidden(h.dims[0]);
    pass.Scale(h, -1.0F);
    if (pass.runs()) pass.Check(pass.backend().AddBias(h, *bias_));
    pass.Scale(h, -1.0F);
    const std::vector<std::int32_t> rows(static_cast<std::size_t>(pass.batch()), 0);
    pass.Embed(*scale_, rows, scales);
    pass.Multiply(h, scales);
  }

  int patches_ = 1;
  float factor_ = 1.0F;
  std::optional<TensorView> bias_, scale_;
  PlacedVector ones_;
  Norm norm_;
  Projection matrix_;
};

}  // namespace

Result<std::unique_ptr<TokenHead>> LoadGemma4Head(TowerSource& source,
                                                  const VisionSettings& settings) {
  auto head = std::make_unique<Gemma4Head>();
  KVCACHE_RETURN_IF_ERROR(head->Load(source, settings));
  return std::unique_ptr<TokenHead>(std::move(head));
}

}  // namespace kvcache::vision
