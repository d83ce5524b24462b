// --store and --disk-budget: where prefixes survive the process. $KVCACHE_STORE is the default of --store.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cli/command_line.h"
#include "kvcache/store.h"
#include "kvcache_engine/engine.h"

namespace kvcache::cli {

// Returns the directory that is used without --store: kvcache in $XDG_CACHE_HOME or ~/.cache. Empty if the
// environment names neither.
std::string DefaultStoreDirectory();

// Reads a number of bytes such as 500M or 10G. Errors: kInvalidArgument.
Result<std::int64_t> ParseBytes(const std::string& text);

class StoreFlags {
 public:
  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Returns the directory, or an empty text for none.
  std::string directory() const;
  // Opens the store. REQUIRES: there is a directory.
  Result<std::unique_ptr<Store>> Open() const;

  // Collects its garbage. REQUIRES: there is a directory.
  Result<StoreStats> CollectGarbage() const;

  // Lets the engine use the store. If it cannot be opened, says so on standard error: generation goes on.
  void Use(Engine& engine) const;
  // Waits until everything is written, and says on standard error if something was not stored.
  static void Finish(Engine& engine);

 private:
  std::string store_;
  std::int64_t budget_bytes_ = kDefaultDiskStoreBytes;
};

}  // namespace kvcache::cli
