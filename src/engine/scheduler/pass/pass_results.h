// What a pass makes of each request: tokens that are evaluated, states that are kept, the next token.
//
// Thread safety: the engine's thread.
#pragma once

#include "engine/scheduler/job_prefixes.h"
#include "engine/scheduler/pass/composed_pass.h"
#include "engine/scheduler/pass/job_sampler.h"
#include "engine/scheduler/pass/pass_runner.h"

namespace kvcache {

class PassResults {
 public:
  // The arguments must outlive it.
  PassResults(Engine& engine, JobPrefixes& prefixes, const PassRunner& runner, JobSampler& sampler)
      : engine_(engine), prefixes_(prefixes), runner_(runner), sampler_(sampler) {}

  // Takes what a pass made of a request with tokens in it. Returns whether the request continues; if not, its result
  // says why.
  bool Take(const PassRows& of);

 private:
  bool TakeDrafts(const PassRows& of);
  bool DrawNext(const PassRows& of);

  Engine& engine_;
  JobPrefixes& prefixes_;
  const PassRunner& runner_;
  JobSampler& sampler_;
};

}  // namespace kvcache
