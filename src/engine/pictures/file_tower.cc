#include "engine/pictures/file_tower.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <mutex>
#include <utility>

#include "base/errors.h"
#include "base/sha256.h"
#include "base/strings.h"
#include "engine/persist/store_fingerprint.h"
#include "gguf/gguf.h"
#include "image/picture_hash.h"
#include "vision/vision_tower.h"

namespace kvcache {
namespace {

using vision::PreparedPicture;
using vision::Projector;
using vision::VisionTower;

// A projector's text models, and what their processors write around a picture.
struct Family {
  Projector projector;
  std::array<std::string_view, 2> architectures;
  PictureMarks marks;
};
constexpr Family kFamilies[] = {
    {Projector::kGemma3,
     {"gemma3"},
     {.before = "\n\n<start_of_image>",
      .after = "<end_of_image>\n\n",
      .in_template = "<start_of_image>"}},
    {Projector::kPixtral,
     {"llama", "mistral3"},
     {.before = "", .after = "[IMG_END]", .in_template = "[IMG]"}},
    {Projector::kQwen25Vl,
     {"qwen2vl"},
     {.before = "<|vision_start|>",
      .after = "<|vision_end|>",
      .in_template = "<|vision_start|><|image_pad|><|vision_end|>"}},
};

// The largest area that is decoded: that of a telephone's photograph of 50 megapixels, which takes 0.6 GB at most.
constexpr image::PictureLimits kLimits{.max_pixels = std::int64_t{50} << 20};

class FilePicture final : public Picture {
 public:
  FilePicture(const Sha256Hash& content, PictureShape shape, const StoreHash& tower,
              PreparedPicture prepared)
      : Picture(content, shape), tower_(tower), prepared_(std::move(prepared)) {}

  const StoreHash& tower() const { return tower_; }
  const PreparedPicture& prepared() const { return prepared_; }

 private:
  StoreHash tower_;  // the hash of its file
  PreparedPicture prepared_;
};

class FileTower final : public PictureTower {
 public:
  FileTower(std::unique_ptr<GgufFile> file, std::unique_ptr<VisionTower> tower,
            const StoreHash& hash, const Family& family)
      : file_(std::move(file)), tower_(std::move(tower)), hash_(hash), family_(family) {}

  Result<PicturePtr> Prepare(std::span<const std::byte> file,
                             std::string_view name) const override {
    const std::lock_guard lock(decoding_);  // one picture at a time: decoded pixels are many
    KVCACHE_ASSIGN_OR_RETURN(PreparedPicture prepared,
                             vision::Prepare(file, name, tower_->settings(), kLimits));
    const PictureShape shape{.cells = prepared.layout.token_count,
                             .is_whole = tower_->settings().tokens_see_each_other,
                             .columns = prepared.layout.tokens.columns,
                             .rows = prepared.layout.tokens.rows};
    if (shape.cells < PictureShape::kMinCells) {
      return Unsupported(StrCat(name, " becomes ", shape.cells, " tokens; it must have at least ",
                                PictureShape::kMinCells));
    }
    return MakePicture(std::move(prepared), shape);
  }

  PictureMarks marks() const override { return family_.marks; }
  bool IsOf(std::string_view architecture) const override {
    return !architecture.empty() &&
           std::ranges::find(family_.architectures, architecture) != family_.architectures.end();
  }
  int row_size() const override { return tower_->embedding_width(); }
  bool Takes(const Picture& picture) const override { return OwnOrNull(picture) != nullptr; }

  Status Begin(const Picture& picture) override {
    const FilePicture* const own = OwnOrNull(picture);
    if (own == nullptr) return InvalidArgument("the picture was prepared for another tower");
    return tower_->Begin(own->prepared());
  }
  Status Step(int rows) override { return tower_->Step(rows); }
  bool done() const override { return tower_->done(); }
  void CopyRows(float* rows) const override { std::ranges::copy(tower_->embeddings(), rows); }
  void Release() override { tower_->Release(); }

 private:
  // Returns the picture if this tower prepared it, or one of the same file. The name of another tower's picture has the
  // other tower's hash, so rows of this one would be kept under a wrong name.
  const FilePicture* OwnOrNull(const Picture& picture) const {
    const auto* const file = dynamic_cast<const FilePicture*>(&picture);
    return file != nullptr && file->tower() == hash_ ? file : nullptr;
  }
  // The rows depend on the tower and on the pixels that it sees, whatever picture these came from.
  Result<PicturePtr> MakePicture(PreparedPicture prepared, PictureShape shape) const {
    KVCACHE_ASSIGN_OR_RETURN(const Sha256Hash pixels, image::HashOf(prepared.pixels));
    return Guarded("no memory for a picture", [&]() -> Result<PicturePtr> {
      constexpr std::string_view kVersion = "kvcache picture, version 1";
      Sha256 content;
      content.Add(std::as_bytes(std::span(kVersion)));
      content.Add(std::as_bytes(std::span(hash_.bytes)));
      content.Add(pixels);
      return PicturePtr(
          std::make_shared<FilePicture>(content.Finish(), shape, hash_, std::move(prepared)));
    });
  }

  std::unique_ptr<GgufFile> file_;
  std::unique_ptr<VisionTower> tower_;
  StoreHash hash_;
  const Family& family_;
  mutable std::mutex decoding_;
};

static_assert(VisionTower::kMaxStepRows >= PictureTower::kMaxStepRows);

}  // namespace

Result<std::unique_ptr<PictureTower>> OpenTower(const std::string& path, Backend& backend) {
  KVCACHE_ASSIGN_OR_RETURN(auto file, GgufFile::Open(path));
  KVCACHE_ASSIGN_OR_RETURN(const auto settings, vision::ReadVisionSettings(*file));
  const auto* const family = std::ranges::find_if(
      kFamilies, [&](const Family& one) { return one.projector == settings.projector; });
  if (family == std::end(kFamilies)) {
    return Unsupported(StrCat(path, ": no model here takes pictures of the projector ",
                              vision::ProjectorName(settings.projector)));
  }
  KVCACHE_ASSIGN_OR_RETURN(auto tower, VisionTower::Load(*file, backend));
  KVCACHE_ASSIGN_OR_RETURN(const StoreHash hash, FileHash(*file));
  return Guarded("no memory for a tower", [&]() -> Result<std::unique_ptr<PictureTower>> {
    return std::unique_ptr<PictureTower>(
        std::make_unique<FileTower>(std::move(file), std::move(tower), hash, *family));
  });
}

}  // namespace kvcache
