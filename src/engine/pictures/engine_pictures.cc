// What an engine does with pictures, besides its passes.
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/pictures/check_tower.h"
#include "engine/pictures/file_tower.h"
#include "engine/pictures/picture_rows.h"

namespace kvcache {
namespace {

// Appends the tokens of a mark. Special tokens in it are special.
Status AddMark(const Tokenizer& tokenizer, std::string_view mark, PicturePrompt& prompt) {
  if (mark.empty()) return Status::Ok();
  KVCACHE_ASSIGN_OR_RETURN(const auto tokens,
                           tokenizer.Encode(mark, {.add_bos = AddToken::kNo,
                                                   .add_eos = AddToken::kNo,
                                                   .special = SpecialText::kParse}));
  prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
  return Status::Ok();
}

}  // namespace

Status CheckTower(const Engine& engine, const PictureTower& tower) {
  const ModelInfo& info = engine.info();
  if (!tower.IsOf(info.architecture)) {
    return Unsupported(
        StrCat("models of architecture ", info.architecture, " take no pictures of this tower"));
  }
  if (engine.pictures() != nullptr) return InvalidArgument("the engine has a tower");
  if (tower.row_size() == info.hidden_size) return Status::Ok();
  return InvalidArgument(StrCat("the tower's rows have ", tower.row_size(),
                                " values, the model's embeddings ", info.hidden_size));
}

Status Engine::UseTower(const std::string& path) {
  KVCACHE_ASSIGN_OR_RETURN(auto tower, OpenTower(path, backend()));
  return UseTower(std::move(tower)).WithContext(path);
}

Status Engine::CheckTakesPictures() const {
  if (pictures() != nullptr) return Status::Ok();
  return Unsupported(StrCat("the model ", info().name.empty() ? info().architecture : info().name,
                            " takes no pictures: no projector file was given with it"));
}

PictureMarks Engine::picture_marks() const {
  return pictures() == nullptr ? PictureMarks() : pictures()->tower().marks();
}

Result<PicturePtr> Engine::PreparePicture(std::span<const std::byte> file,
                                          std::string_view name) const {
  KVCACHE_RETURN_IF_ERROR(CheckTakesPictures());
  return pictures()->tower().Prepare(file, name);
}

Status Engine::AddPicture(PicturePtr picture, PicturePrompt& prompt) const {
  KVCACHE_RETURN_IF_ERROR(CheckTakesPictures());
  const PictureMarks marks = picture_marks();
  return Guarded("no memory for a prompt", [&]() -> Status {
    KVCACHE_RETURN_IF_ERROR(AddMark(tokenizer(), marks.before, prompt));
    const auto ids = picture->ids();
    const auto begin = static_cast<Position>(prompt.tokens.size());
    prompt.tokens.insert(prompt.tokens.end(), ids.begin(), ids.end());
    prompt.pictures.push_back({begin, std::move(picture)});
    return AddMark(tokenizer(), marks.after, prompt);
  });
}

}  // namespace kvcache
