// The texts of errors that concern several threads of a block.
#include "backend/cuda/shim/block_runner.h"

namespace kvcache::cuda::shim {

void BlockRunner::FailAtBarrier(Site site) {
  Fail({.site = site,
        .text = "waits at another barrier than threads of its block, which are at " +
                SiteText(barrier_site_)});
}

void BlockRunner::FailInWarp(const WarpMeeting& meeting, const WarpMeeting::Kind& kind, Site site) {
  Fail({.site = site,
        .text = "reaches " + std::string(kind.name) + ", but other lanes of its warp are in " +
                meeting.kind->name + " at " + SiteText(meeting.site)});
}

// Describes a block in which no thread can go on.
std::string BlockRunner::WaitingText() const {
  const int threads = launch_.kernel->threads;
  for (int warp = 0; warp < threads / kLanes; ++warp) {
    const WarpMeeting& meeting = warps_[warp];
    if (meeting.arrived == 0) continue;
    return std::to_string(meeting.arrived) + " of 32 lanes of warp " + std::to_string(warp) +
           " wait in " + meeting.kind->name + " at " + SiteText(meeting.site) + " for " +
           MissingText(warp * kLanes, meeting.lanes);
  }
  return std::to_string(at_barrier_) + " of " + std::to_string(threads) +
         " threads wait in BlockBarrier at " + SiteText(barrier_site_) + " for " +
         MissingText(0, 0);
}

// Describes the first thread of the block, from `first` on, that does not wait with the others. `lanes`: those
// of the first warp that do.
std::string BlockRunner::MissingText(int first, std::uint32_t lanes) const {
  int thread = first;
  if (lanes != 0) {
    while ((lanes >> (thread - first) & 1) != 0) ++thread;
  } else {
    while (waits_for_block_[thread]) ++thread;
  }
  const bool ended = fiber_of_[thread] == fibers_.main();
  if (ended) return ThreadText(thread) + ", which has ended";
  if (waits_for_block_[thread]) {
    return ThreadText(thread) + ", which waits in BlockBarrier at " + SiteText(barrier_site_);
  }
  const WarpMeeting& meeting = warps_[thread / kLanes];
  return ThreadText(thread) + ", which waits in " + meeting.kind->name + " at " +
         SiteText(meeting.site);
}

std::string BlockRunner::PlaceOfAddress(std::uintptr_t address) const {
  if (address - current.args_low < current.args_bytes) {
    return "offset " + std::to_string(address - current.args_low) + " of the kernel's arguments";
  }
  if (const Fiber* const fiber = fibers_.FindStack(address); fiber != nullptr) {
    for (int thread = 0; thread < launch_.kernel->threads; ++thread) {
      if (fiber_of_[thread] == fiber) return "the stack of " + ThreadText(thread);
    }
    return "the stack of a thread that has ended";
  }
  const std::string text = launch_.memory->Describe(address);
  if (text.ends_with("shared memory")) {
    return text + " (" + std::to_string(launch_.shared_bytes) + " bytes)";
  }
  return text.empty() ? "an address of the host" : text;
}

}  // namespace kvcache::cuda::shim
