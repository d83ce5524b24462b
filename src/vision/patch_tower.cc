#include "vision/patch_tower.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "image/normalise.h"

namespace kvcache::vision {

Status PatchTower::LoadWeights(const GgufFile& file) {
  WeightReader reader(file, backend_);
  KVCACHE_RETURN_IF_ERROR(reader.EnterLayer(Backend::kBeforeLayers));
  TowerSource source{file, backend_, reader};
  reader.IgnoreAll("a.");  // what belongs to sound
  reader.IgnoreAll("mm.a.");
  KVCACHE_RETURN_IF_ERROR(embedding_.Load(source, settings_));
  for (int i = 0; i < settings_.layers; ++i) {
    KVCACHE_ASSIGN_OR_RETURN(TowerLayer layer, TowerLayer::Load(source, settings_, i));
    layers_.push_back(std::move(layer));
  }
  heads_.resize(static_cast<std::size_t>(settings_.parts()));
  KVCACHE_ASSIGN_OR_RETURN(heads_[0], LoadTokenHead(source, settings_));
  for (std::size_t i = 1; i < heads_.size(); ++i) {
    KVCACHE_ASSIGN_OR_RETURN(heads_[i],
                             LoadDeepHead(source, settings_, settings_.deep_layers[i - 1]));
  }
  if (settings_.has_row_breaks) {
    KVCACHE_ASSIGN_OR_RETURN(const std::span<const float> values,
                             reader.Floats("v.token_embd.img_break", settings_.embedding_width));
    row_break_.assign(values.begin(), values.end());
  }
  KVCACHE_RETURN_IF_ERROR(reader.CheckAllUsed());
  placed_ = reader.TakePlaced();
  return Status::Ok();
}

std::int64_t PatchTower::ActivationBytes() const {
  const auto host = pixels_.capacity() + made_.capacity() + embeddings_.capacity();
  return static_cast<std::int64_t>(host * sizeof(float)) + states_.bytes() + activations_.bytes() +
         attention_.bytes();
}

Status PatchTower::Check(const PreparedPicture& picture) const {
  const PictureLayout& layout = picture.layout;
  const std::int64_t pixels = std::int64_t{layout.size.width} * layout.size.height;
  const int token = settings_.patch_size * settings_.merge;
  const bool fits =
      layout.tokens.columns > 0 && layout.tokens.rows > 0 &&
      layout.size.width == layout.tokens.columns * token &&
      layout.size.height == layout.tokens.rows * token &&
      layout.patches.columns == layout.tokens.columns * settings_.merge &&
      layout.patches.rows == layout.tokens.rows * settings_.merge &&
      layout.token_count ==
          layout.tokens.count() + (settings_.has_row_breaks ? layout.tokens.rows - 1 : 0);
  const bool filled = picture.pixels.width == layout.size.width &&
                      picture.pixels.height == layout.size.height &&
                      std::ssize(picture.pixels.rgb) == 3 * pixels;
  const int positions = settings_.position_count;
  const bool known = positions == 0 || settings_.interpolates_positions ||
                     (settings_.has_axis_positions
                          ? layout.patches.columns <= positions && layout.patches.rows <= positions
                          : positions == layout.patches.count());
  if (fits && filled && known) return Status::Ok();
  return InvalidArgument(StrCat("a picture of ", picture.pixels.width, " x ", picture.pixels.height,
                                " pixels with a layout of ", layout.size.width, " x ",
                                layout.size.height, " and ", layout.token_count,
                                " tokens; must be one that Prepare made for this tower"));
}

TensorView PatchTower::States(std::int64_t first, std::int64_t count) const {
  return states_.At(first * settings_.width, settings_.width, count);
}

// Every stage takes its views from one buffer.
Status PatchTower::Reserve(const PictureLayout& layout) {
  const std::int64_t patches = layout.patches.count();
  const std::int64_t rows = std::min<std::int64_t>(patches, kMaxStepRows);
  const std::int64_t tokens = std::max<std::int64_t>(1, rows / PatchesOfToken());
  Pass measure = Pass::Measuring(rows);
  embedding_.Run(measure, order_, 0, nullptr,
                 TensorView::Dense(nullptr, DType::kF32, settings_.width, rows));
  const PieceOfPicture piece{attention_, order_, rotation_, 0};
  const TensorView x = TensorView::Dense(nullptr, DType::kF32, settings_.width, rows);
  layers_[0].StoreKeys(measure, piece, x);
  layers_[0].Run(measure, piece, x);
  Pass tokens_measure = Pass::Measuring(tokens);
  const TensorView out = tokens_measure.TakeHidden(settings_.embedding_width);
  for (const auto& head : heads_) {
    head->Run(tokens_measure,
              TensorView::Dense(nullptr, DType::kF32, settings_.width, tokens * PatchesOfToken()),
              out);
  }
  KVCACHE_RETURN_IF_ERROR(activations_.Reserve(
      backend_, std::max(measure.peak_values(), tokens_measure.peak_values())));
  KVCACHE_RETURN_IF_ERROR(states_.Reserve(backend_, patches * settings_.width));
  KVCACHE_RETURN_IF_ERROR(attention_.Reserve(
      backend_, {settings_.heads, settings_.head_dim(), settings_.head_dim()}, patches));
  return Guarded("no memory for a picture's embeddings", [&] {
    positions_.assign(static_cast<std::size_t>(rows), 0);
    made_.resize(static_cast<std::size_t>(tokens * settings_.embedding_width));
    embeddings_.resize(static_cast<std::size_t>(layout.token_count) *
                       static_cast<std::size_t>(embedding_width()));
  });
}

Status PatchTower::TakePicture(const PreparedPicture& picture) {
  KVCACHE_ASSIGN_OR_RETURN(const image::Planes planes,
                           image::Normalise(picture.pixels, settings_.normalisation));
  KVCACHE_ASSIGN_OR_RETURN(image::Patches patches, image::PatchesOf(planes, settings_.patch_size));
  pixels_ = std::move(patches.values);
  return Status::Ok();
}

Status PatchTower::Begin(const PreparedPicture& picture) {
  stage_ = Stage::kNone;
  KVCACHE_RETURN_IF_ERROR(Check(picture));
  KVCACHE_ASSIGN_OR_RETURN(order_,
                           OrderPatches(picture.layout.patches, settings_.merge, settings_.window));
  KVCACHE_RETURN_IF_ERROR(Reserve(picture.layout));
  KVCACHE_RETURN_IF_ERROR(attention_.SetWindows(order_.window_ends));
  KVCACHE_RETURN_IF_ERROR(TakePicture(picture));
  layout_ = picture.layout;
  PutRowBreaks();
  stage_ = Stage::kEmbed;
  layer_ = 0;
  next_row_ = 0;
  return Status::Ok();
}

void PatchTower::Release() {
  stage_ = Stage::kNone;
  for (std::vector<float>* const values : {&pixels_, &made_, &embeddings_}) {
    *values = std::vector<float>();
  }
  states_ = ActivationBuffer();
  activations_ = ActivationBuffer();
  attention_ = PictureAttention();
}

void PatchTower::RunStage(Pass& pass, std::int64_t first) {
  const TensorView x = States(first, pass.batch());
  const PieceOfPicture piece{attention_, order_, rotation_, first};
  switch (stage_) {
    case Stage::kEmbed: return embedding_.Run(pass, order_, first, pixels_.data(), x);
    case Stage::kKeys: return layers_[layer_].StoreKeys(pass, piece, x);
    case Stage::kLayer: return layers_[layer_].Run(pass, piece, x);
    default: return;
  }
}

int PatchTower::PresentPart() const {
  if (stage_ == Stage::kTokens) return 0;
  const auto& deep = settings_.deep_layers;
  return 1 + static_cast<int>(std::ranges::find(deep, static_cast<int>(layer_)) - deep.begin());
}

void PatchTower::PutRowBreaks() {
  if (!settings_.has_row_breaks) return;
  const auto step = static_cast<std::size_t>(layout_.tokens.columns + 1) * row_break_.size();
  for (std::size_t i = 1; i < static_cast<std::size_t>(layout_.tokens.rows); ++i) {
    std::ranges::copy(row_break_, embeddings_.data() + i * step - row_break_.size());
  }
}

// Brings the embeddings of a step's tokens to their places.
void PatchTower::Deliver(std::int64_t first, std::int64_t count, int part) {
  const auto width = static_cast<std::size_t>(settings_.embedding_width);
  const auto row = static_cast<std::size_t>(embedding_width());
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t token = order_.tokens[static_cast<std::size_t>(first + i)];
    const std::int32_t breaks = settings_.has_row_breaks ? token / layout_.tokens.columns : 0;
    std::copy_n(made_.data() + static_cast<std::size_t>(i) * width, width,
                embeddings_.data() + static_cast<std::size_t>(token + breaks) * row +
                    static_cast<std::size_t>(part) * width);
  }
}

Status PatchTower::RunTokens(std::int64_t first, std::int64_t count) {
  Pass pass(backend_, activations_, nullptr,
            std::span(positions_).first(static_cast<std::size_t>(count)), nullptr);
  pass.BeginAt(Backend::kBeforeLayers);
  const TensorView out = pass.TakeHidden(settings_.embedding_width);
  const int part = PresentPart();
  HeadOf(part).Run(pass, States(first * PatchesOfToken(), count * PatchesOfToken()), out);
  KVCACHE_RETURN_IF_ERROR(pass.status());
  const auto values = static_cast<std::size_t>(out.elements());
  KVCACHE_RETURN_IF_ERROR(
      backend_.CopyToHost(out, std::as_writable_bytes(std::span(made_).first(values))));
  Deliver(first, count, part);
  return Status::Ok();
}

Status PatchTower::RunPiece(std::int64_t count) {
  if (stage_ == Stage::kTokens || stage_ == Stage::kDeep) {
    return RunTokens(next_row_ / PatchesOfToken(), count / PatchesOfToken());
  }
  Pass pass(backend_, activations_, nullptr,
            std::span(positions_).first(static_cast<std::size_t>(count)), nullptr);
  pass.BeginAt(Backend::kBeforeLayers);
  RunStage(pass, next_row_);
  return pass.status();
}

Status PatchTower::Step(int rows) {
  if (stage_ == Stage::kNone || stage_ == Stage::kDone) {
    return InvalidArgument("a step of a tower without a picture, or whose picture is done");
  }
  if (rows < 1 || rows > kMaxStepRows) {
    return InvalidArgument(StrCat("a step of ", rows, " patches; must be 1 to ", kMaxStepRows));
  }
  const std::int64_t left = layout_.patches.count() - next_row_;
  std::int64_t count = std::min<std::int64_t>(rows, left);
  if (stage_ == Stage::kTokens || stage_ == Stage::kDeep) {  // whole tokens
    count = std::max(PatchesOfToken(), count / PatchesOfToken() * PatchesOfToken());
  }
  if (Status status = RunPiece(count); !status.ok()) {
    stage_ = Stage::kNone;
    return status;
  }
  GoOn(count);
  return Status::Ok();
}

// Sets what the next step does.
void PatchTower::GoOn(std::int64_t rows) {
  next_row_ += rows;
  if (next_row_ < layout_.patches.count()) return;
  next_row_ = 0;
  switch (stage_) {
    case Stage::kEmbed:
      pixels_ = {};
      stage_ = Stage::kKeys;
      break;
    case Stage::kKeys: stage_ = Stage::kLayer; break;
    case Stage::kLayer:
      if (std::ranges::count(settings_.deep_layers, static_cast<int>(layer_)) > 0) {
        stage_ = Stage::kDeep;
        break;
      }
      [[fallthrough]];
    case Stage::kDeep: stage_ = ++layer_ < layers_.size() ? Stage::kKeys : Stage::kTokens; break;
    default: stage_ = Stage::kDone; break;
  }
}

Status VisionTower::Embed(const PreparedPicture& picture, std::span<float> out) {
  const std::int64_t values = std::int64_t{picture.layout.token_count} * embedding_width();
  if (std::ssize(out) != values) {
    return InvalidArgument(
        StrCat("memory for ", out.size(), " values of embeddings; must be ", values));
  }
  KVCACHE_RETURN_IF_ERROR(Begin(picture));
  while (!done()) KVCACHE_RETURN_IF_ERROR(Step(kMaxStepRows));
  std::ranges::copy(embeddings(), out.begin());
  return Status::Ok();
}

Result<std::unique_ptr<VisionTower>> VisionTower::Load(const GgufFile& file, Backend& backend) {
  KVCACHE_ASSIGN_OR_RETURN(VisionSettings settings, ReadVisionSettings(file));
  return Guarded("no memory for a vision tower", [&]() -> Result<std::unique_ptr<VisionTower>> {
    auto tower = std::make_unique<PatchTower>(std::move(settings), backend);
    if (Status status = tower->LoadWeights(file); !status.ok()) {
      return std::move(status).WithContext(file.path());
    }
    return std::unique_ptr<VisionTower>(std::move(tower));
  });
}

Result<std::unique_ptr<TokenHead>> LoadTokenHead(TowerSource& source,
                                                 const VisionSettings& settings) {
  switch (settings.projector) {
    case Projector::kGemma3: return LoadGemma3Head(source, settings);
    case Projector::kQwen25Vl:
    case Projector::kQwen3Vl: return LoadQwenHead(source, settings);
    case Projector::kPixtral: return LoadPixtralHead(source, settings);
    case Projector::kGemma4: return LoadGemma4Head(source, settings);
  }
  return Unsupported("this projector");
}

}  // namespace kvcache::vision
