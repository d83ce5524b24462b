// Runs the tower for the pictures of prompts, between passes. A step of the scheduler does as much of it as prompts may
// add to a pass, also for a lone request, so that others can come and go between.
//
// Thread safety: the engine's thread.
// Design: docs/design/images.md.
#pragma once

#include <functional>
#include <span>

#include "engine/scheduler/job.h"

namespace kvcache {

class TowerRuns {
 public:
  // The arguments must outlive it.
  TowerRuns(Engine& engine, const std::function<double()>& clock, double step_seconds,
            SchedulerStats& stats)
      : engine_(engine), clock_(clock), step_seconds_(step_seconds), stats_(stats) {}

  // Gives prompts the rows of the pictures that they read next, and works on those of one of them. If its picture fails,
  // returns the request, and its result has the error; else null.
  Job* Advance(std::span<const JobPtr> live);

 private:
  Status Work(Job& job, const PromptPicture& picture, bool is_alone);

  Engine& engine_;
  const std::function<double()>& clock_;
  const double step_seconds_;
  SchedulerStats& stats_;
};

}  // namespace kvcache
