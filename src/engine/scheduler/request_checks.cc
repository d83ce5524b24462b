#include "engine/scheduler/request_checks.h"

#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"

namespace kvcache {
namespace {

Status CheckPrompt(const Engine& engine, std::span<const std::int32_t> prompt) {
  if (prompt.empty()) return InvalidArgument("the prompt is empty");
  if (prompt.size() > static_cast<std::size_t>(engine.context())) {
    return InvalidArgument(
        StrCat("the prompt has ", prompt.size(), " tokens, the context holds ", engine.context()));
  }
  for (const std::int32_t token : prompt) {
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

Status CheckRequest(const Engine& engine, const ScheduledRequest& request) {
  KVCACHE_RETURN_IF_ERROR(request.sampling.Check());
  KVCACHE_RETURN_IF_ERROR(CheckPrompt(engine, request.prompt));
  if (request.draft_tokens < -1 || request.draft_tokens > DraftRates::kMax) {
    return InvalidArgument(StrCat("draft tokens are ", request.draft_tokens, "; must be from 0 to ",
                                  DraftRates::kMax));
  }
  return CheckRestorePoints(request);
}

}  // namespace kvcache
