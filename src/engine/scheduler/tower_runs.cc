#include "engine/scheduler/tower_runs.h"

#include <utility>

#include "base/seconds_since.h"
#include "engine/engine_impl.h"
#include "engine/scheduler/job_pictures.h"
#include "engine/scheduler/pass/step_clock.h"

namespace kvcache {
namespace {

constexpr int kRowsBeside = 64;  // of a step of the tower beside other requests

}  // namespace

Job* TowerRuns::Advance(std::span<const JobPtr> live) {
  PictureRows* const rows = engine_.pictures();
  if (rows == nullptr) return nullptr;
  Job* next = nullptr;  // the oldest request that waits for rows
  for (const JobPtr& job : live) {
    if (job->pictures == nullptr || job->store.is_loading()) continue;
    JobPictures& own = *job->pictures;
    const PromptPicture* const picture = own.Next(job->length);
    if (picture == nullptr) {
      own.rows = nullptr;
      continue;
    }
    if (own.has_rows_of(*picture)) continue;
    own.rows = rows->Find(*picture->picture);
    if (own.rows == nullptr && (next == nullptr || job->id < next->id)) next = job.get();
  }
  if (next == nullptr) {
    rows->Rest();
    return nullptr;
  }
  Status status = Work(*next, *next->pictures->Next(next->length), live.size() == 1);
  if (status.ok()) return nullptr;
  next->result.status = std::move(status);
  return next;
}

Status TowerRuns::Work(Job& job, const PromptPicture& picture, bool is_alone) {
  double seconds = 0.0;
  // Also a lone request's work ends then: the queue may have others meanwhile, or somebody cancels or wants to stop.
  const auto now = [&] { return clock_ ? clock_() : SecondsSince({}); };
  const double end = now() + step_seconds_;
  const auto stops = [&] { return job.is_interrupted() || now() >= end; };
  Result<EmbeddedPtr> rows = EmbeddedPtr();
  {
    const AddSeconds time(clock_, seconds);
    rows = engine_.pictures()->Advance(picture.picture,
                                       is_alone ? PictureTower::kMaxStepRows : kRowsBeside, stops);
  }
  stats_.tower_seconds += seconds;
  KVCACHE_RETURN_IF_ERROR(rows.status());
  if (*rows == nullptr) return Status::Ok();
  job.pictures->rows = std::move(rows).value();
  ++stats_.tower_runs;
  ++job.result.reuse.tower_runs;
  return Status::Ok();
}

}  // namespace kvcache
