#include "app/flags/picture_flags.h"

#include <span>
#include <utility>

#include "app/terminal/terminal.h"
#include "base/errors.h"

namespace kvcache::app {
namespace {

constexpr std::size_t kMaxPictureBytes = std::size_t{32} << 20;

}  // namespace

void PictureFlags::AddTower(FlagSet command) {
  command
      .AddText(
          "--mmproj", &projector_,
          "the projector file (mmproj-….gguf) that was published with the model: prompts may "
          "then have pictures; none: no pictures (default: that of a stored model that has one)")
      .ValueName("FILE");
}

void PictureFlags::Add(FlagSet command) {
  AddTower(command);
  command
      .AddText("--image", &images_,
               "a picture that stands before the prompt, or before the first message of a chat: "
               "PNG, JPEG, WebP, GIF or BMP; may be given several times")
      .ValueName("FILE");
}

Status PictureFlags::Use(Engine& engine) const {
  if (projector_.empty() && images_.empty()) return Status::Ok();
  return UseLater(engine);
}

Status PictureFlags::UseLater(Engine& engine) const {
  const std::string& path = projector_.empty() ? stored_ : projector_;
  if (path.empty() || path == kNone || engine.CheckTakesPictures().ok()) return Status::Ok();
  return engine.UseTower(path);
}

Result<std::vector<PicturePtr>> PictureFlags::Read(const Engine& engine) const {
  std::vector<PicturePtr> pictures;
  for (const std::string& path : images_) {
    KVCACHE_ASSIGN_OR_RETURN(PicturePtr picture, ReadPicture(engine, path));
    pictures.push_back(std::move(picture));
  }
  return pictures;
}

Result<PicturePtr> ReadPicture(const Engine& engine, const std::string& path) {
  KVCACHE_RETURN_IF_ERROR(engine.CheckTakesPictures());
  KVCACHE_ASSIGN_OR_RETURN(const std::string file, ReadTextFile(path, kMaxPictureBytes));
  return engine.PreparePicture(std::as_bytes(std::span(file)), path);
}

}  // namespace kvcache::app
