// Two matrices over the patches of a token side by side, with GELU between them: Qwen 2.5 VL and 3 VL (Bai et al.,
// "Qwen2.5-VL Technical Report", 2025; "Qwen3-VL Technical Report", 2025), Pixtral and Mistral 3 (Agrawal et al.,
// "Pixtral 12B", 2024).
//
//                 norm               before the two matrices
//   qwen          of each patch      nothing
//   qwen3, deep   of each token      nothing
//   pixtral       none               nothing
//   mistral3      of each patch      a matrix over the token's patches
//
// GELU is the tanh form, as in llama.cpp; the published code of these heads computes it with erf.
#include <optional>
#include <string>
#include <utility>

#include "vision/token_head.h"

namespace kvcache::vision {
namespace {

class MergerHead final : public TokenHead {
 public:
  MergerHead(int patches, std::int64_t outputs) : patches_(patches), outputs_(outputs) {}

  // Takes the two matrices. `inputs`: values of a token.
  Status LoadMatrices(TowerSource& source, std::int64_t inputs, const std::string& first,
                      const std::string& second) {
    hidden_ = source.reader.Rows(first + ".weight");
    KVCACHE_ASSIGN_OR_RETURN(first_,
                             source.reader.Linear(first, inputs, hidden_, Bias::kIfPresent));
    KVCACHE_ASSIGN_OR_RETURN(second_,
                             source.reader.Linear(second, hidden_, outputs_, Bias::kIfPresent));
    return Status::Ok();
  }
  void NormalizePatches(Norm norm) { patch_norm_ = norm; }
  void NormalizeTokens(Norm norm) { token_norm_ = norm; }
  void MergeBy(OwnMatrix merger) { merger_ = std::move(merger); }

  void Run(Pass& pass, const TensorView& x, const TensorView& out) const override {
    const Pass::Scope scope(pass);
    const std::int64_t width = x.dims[0];
    const TensorView h = pass.TakeHidden(width * patches_);
    const TensorView patches = TensorView::Dense(h.data, DType::kF32, width, x.dims[1]);
    const TensorView merged = pass.TakeHidden(merger_.weight == nullptr ? 0 : width);
    const TensorView hidden = pass.TakeHidden(hidden_);
    if (patch_norm_.has_value()) {
      pass.Normalize(x, *patch_norm_, patches);
    } else {
      pass.Copy(x, patches);
    }
    if (token_norm_.has_value()) pass.Normalize(h, *token_norm_, h);
    if (merger_.weight != nullptr && pass.runs()) {
      const LinearOutput product[] = {{merger_.weight.get(), merged}};
      pass.Check(pass.backend().Linear(h, product));
    }
    pass.Linear(merger_.weight == nullptr ? h : merged, {{first_, hidden}});
    pass.Activate(hidden, Activation::kGelu);
    pass.Linear(hidden, {{second_, out}});
  }

 private:
  int patches_;
  std::int64_t outputs_;
  std::int64_t hidden_ = 0;
  std::optional<Norm> patch_norm_, token_norm_;
  OwnMatrix merger_;  // without a weight: none
  Projection first_, second_;
};

std::int64_t PatchesOfToken(const VisionSettings& settings) {
  return std::int64_t{settings.merge} * settings.merge;
}

std::unique_ptr<MergerHead> NewHead(const VisionSettings& settings) {
  return std::make_unique<MergerHead>(settings.merge * settings.merge, settings.embedding_width);
}

}  // namespace

Result<std::unique_ptr<TokenHead>> LoadQwenHead(TowerSource& source,
                                                const VisionSettings& settings) {
  auto head = NewHead(settings);
  if (settings.norm == NormKind::kRms) {
    KVCACHE_ASSIGN_OR_RETURN(Norm norm,
                             source.reader.RmsNorm("v.post_ln", settings.width, settings.epsilon));
    head->NormalizePatches(norm);
  } else {
    KVCACHE_ASSIGN_OR_RETURN(
        Norm norm,
        source.reader.LayerNorm("v.post_ln", settings.width, settings.epsilon, Bias::kIfPresent));
    head->NormalizePatches(norm);
  }
  KVCACHE_RETURN_IF_ERROR(
      head->LoadMatrices(source, settings.width * PatchesOfToken(settings), "mm.0", "mm.2"));
  return std::unique_ptr<TokenHead>(std::move(head));
}

Result<std::unique_ptr<TokenHead>> LoadDeepHead(TowerSource& source, const VisionSettings& settings,
                                                int layer) {
  const std::string prefix = "v.deepstack." + std::to_string(layer) + ".";
  const std::int64_t inputs = settings.width * PatchesOfToken(settings);
  auto head = NewHead(settings);
  KVCACHE_ASSIGN_OR_RETURN(Norm norm, source.reader.LayerNorm(prefix + "norm", inputs,
                                                              settings.epsilon, Bias::kIfPresent));
  head->NormalizeTokens(norm);
  KVCACHE_RETURN_IF_ERROR(head->LoadMatrices(source, inputs, prefix + "fc1", prefix + "fc2"));
  return std::unique_ptr<TokenHead>(std::move(head));
}

Result<std::unique_ptr<TokenHead>> LoadPixtralHead(TowerSource& source,
                                                   const VisionSettings& settings) {
  auto head = NewHead(settings);
  std::int64_t inputs = settings.width * PatchesOfToken(settings);
  if (settings.merge > 1) {
    KVCACHE_ASSIGN_OR_RETURN(
        Norm norm, source.reader.RmsNorm("mm.input_norm", settings.width, settings.epsilon));
    head->NormalizePatches(norm);
    KVCACHE_ASSIGN_OR_RETURN(OwnMatrix merger,
                             TakeMerger(source, "mm.patch_merger.weight", settings.width,
                                        PatchesOfToken(settings), settings.width));
    head->MergeBy(std::move(merger));
    inputs = settings.width;
  }
  KVCACHE_RETURN_IF_ERROR(head->LoadMatrices(source, inputs, "mm.1", "mm.2"));
  return std::unique_ptr<TokenHead>(std::move(head));
}

}  // namespace kvcache::vision
