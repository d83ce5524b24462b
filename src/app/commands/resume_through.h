// `eval --resume-at N --via TIER`: lets a text's state go and takes it back through one tier.
//
// Thread safety: that of the session.
#pragma once

#include <cstdint>
#include <string>

#include "app/flags/store_flags.h"
#include "kvcache_engine/session.h"

namespace kvcache::app {

enum class ResumeTier : std::uint8_t {
  kLive,    // the cells stay, and a snapshot shares them
  kMemory,  // bytes in this process
  kDisk,    // an object in the first directory of --store
  kRemote,  // an object in the first Redis server of --store
};
inline constexpr const char* kResumeTierNames[] = {"live", "memory", "disk", "remote"};

// Returns the tier of a name. Errors: kInvalidArgument, with the names.
Result<ResumeTier> ParseResumeTier(const std::string& name);

// Empties the session, and restores what it held through the tier. A stored object is removed again.
// Returns the milliseconds that the restoring took. Errors: kInvalidArgument if --store names no store of
// the tier; those of the store and of CacheSnapshots::Restore.
Result<double> ResumeThrough(ResumeTier tier, const StoreFlags& stores, Engine& engine,
                             Session& session);

}  // namespace kvcache::app
