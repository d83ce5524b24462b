#include "engine/scheduler/request_checks.h"

#include <algorithm>

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "engine/pictures/picture_rows.h"
#include "engine/pictures/prompt_pictures.h"

namespace kvcache {
namespace {

Status CheckPicture(const PictureTower& tower, const ScheduledRequest& request,
                    const PromptPicture& picture, Position before, int max_tokens) {
  if (picture.picture == nullptr || picture.begin < before) {
    return InvalidArgument(StrCat("a picture is at token ", picture.begin, " behind ", before,
                                  "; pictures must ascend and have their cells"));
  }
  if (!tower.Takes(*picture.picture)) {
    return InvalidArgument(
        StrCat("the picture at token ", picture.begin, " was prepared for another tower"));
  }
  const std::span<const std::int32_t> prompt(request.prompt);
  const auto ids = picture.picture->ids();
  const auto begin = static_cast<std::size_t>(picture.begin);
  if (begin > prompt.size() || prompt.size() - begin < ids.size() ||
      !std::ranges::equal(prompt.subspan(begin, ids.size()), ids)) {
    return InvalidArgument(StrCat("the prompt does not have the ids of the picture of ", ids.size(),
                                  " tokens at token ", picture.begin));
  }
  if (!picture.picture->shape().is_whole || std::ssize(ids) <= max_tokens) return Status::Ok();
  return InvalidArgument(
      StrCat("a picture has ", ids.size(), " tokens, a pass at most ", max_tokens,
             ", and the model reads a picture in one pass; --prefill-chunk sets the most"));
}

Status CheckPictures(const Engine& engine, const ScheduledRequest& request, int max_tokens) {
  if (request.pictures.empty()) return Status::Ok();
  KVCACHE_RETURN_IF_ERROR(engine.CheckTakesPictures());
  Position before = 0;
  for (const PromptPicture& picture : request.pictures) {
    KVCACHE_RETURN_IF_ERROR(
        CheckPicture(engine.pictures()->tower(), request, picture, before, max_tokens));
    before = picture.end();
  }
  return Status::Ok();
}

Status CheckPrompt(const Engine& engine, std::span<const std::int32_t> prompt,
                   std::span<const PromptPicture> pictures) {
  if (prompt.empty()) return InvalidArgument("the prompt is empty");
  if (prompt.size() > static_cast<std::size_t>(engine.context())) {
    return InvalidArgument(
        StrCat("the prompt has ", prompt.size(), " tokens, the context holds ", engine.context()));
  }
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (!pictures.empty() && static_cast<std::size_t>(pictures.front().begin) == i) {
      i += static_cast<std::size_t>(pictures.front().picture->cells()) - 1;
      pictures = pictures.subspan(1);
      continue;
    }
    const std::int32_t token = prompt[i];
    if (token >= 0 && token < engine.info().embedding_rows) continue;
    return InvalidArgument(
        StrCat("token ", token, " is not in the vocabulary of ", engine.info().embedding_rows));
  }
  return Status::Ok();
}

Status CheckRestorePoints(const ScheduledRequest& request) {
  const auto size = static_cast<Position>(request.prompt.size());
  Position before = 0;
  for (const Position point : request.restore_points) {
    if (point <= before || point > size) {
      return InvalidArgument(StrCat("a restore point at ", point, " after one at ", before,
                                    "; they must ascend within the prompt of ", size));
    }
    before = point;
  }
  return Status::Ok();
}

}  // namespace

Status CheckRequest(const Engine& engine, const ScheduledRequest& request, int max_tokens) {
  KVCACHE_RETURN_IF_ERROR(request.sampling.Check());
  KVCACHE_RETURN_IF_ERROR(CheckPictures(engine, request, max_tokens));
  KVCACHE_RETURN_IF_ERROR(CheckPrompt(engine, request.prompt, request.pictures));
  if (request.draft_tokens < -1 || request.draft_tokens > DraftRates::kMax) {
    return InvalidArgument(StrCat("draft tokens are ", request.draft_tokens, "; must be from 0 to ",
                                  DraftRates::kMax));
  }
  return CheckRestorePoints(request);
}

}  // namespace kvcache
