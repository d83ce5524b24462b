// gemma3 (Gemma 3; Gemma Team, "Gemma 3 Technical Report", 2025): SigLIP's states, averaged over squares of patches.
#include <utility>
#include <vector>

#include "vision/token_head.h"

namespace kvcache::vision {
namespace {

class Gemma3Head final : public TokenHead {
 public:
  Status Load(TowerSource& source, const VisionSettings& settings) {
    patches_ = settings.merge * settings.merge;
    auto& reader = source.reader;
    KVCACHE_ASSIGN_OR_RETURN(tower_norm_, reader.LayerNorm("v.post_ln", settings.width,
                                                           settings.epsilon, Bias::kIfPresent));
    KVCACHE_ASSIGN_OR_RETURN(norm_,
                             reader.RmsNorm("mm.soft_emb_norm", settings.width, settings.epsilon));
    KVCACHE_ASSIGN_OR_RETURN(matrix_, TakeTransposed(source, "mm.input_projection.weight",
                                                     settings.width, settings.embedding_width));
    return Status::Ok();
  }

  void Run(Pass& pass, const TensorView& x, const TensorView& out) const override {
    const Pass::Scope scope(pass);
    const TensorView h = pass.TakeHidden(x.dims[0]);
    pass.Normalize(x, tower_norm_, x);
    if (pass.runs()) pass.Check(AverageColumns(pass.backend(), x, patches_, h));
    pass.RmsNorm(h, norm_, h);
    if (!pass.runs()) return;
    const LinearOutput product[] = {{matrix_.weight.get(), out}};
    pass.Check(pass.backend().Linear(h, product));
  }

 private:
  int patches_ = 1;
  Norm tower_norm_, norm_;
  OwnMatrix matrix_;
};

}  // namespace

// 1 / patches is exact for squares of powers of two, and so is each product then.
Status AverageColumns(Backend& backend, const TensorView& x, int patches, const TensorView& h) {
  std::vector<std::int32_t> columns(static_cast<std::size_t>(x.dims[1]));
  for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<std::int32_t>(i);
  const std::vector<float> weights(columns.size(), 1.0F / static_cast<float>(patches));
  return backend.Combine(x, columns, weights, h);
}

Result<std::unique_ptr<TokenHead>> LoadGemma3Head(TowerSource& source,
                                                  const VisionSettings& settings) {
  auto head = std::make_unique<Gemma3Head>();
  KVCACHE_RETURN_IF_ERROR(head->Load(source, settings));
  return std::unique_ptr<TokenHead>(std::move(head));
}

}  // namespace kvcache::vision
