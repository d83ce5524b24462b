// --store and --disk-budget: where prefixes survive the process. $KVCACHE_STORE is the default of --store;
// it names several stores with commas between them.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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

  // Returns the stores in order, the fastest first: directories, URLs of Redis, "memory". Empty: none.
  std::vector<std::string> names() const;
  // Returns a store's name without a password.
  static std::string NameOf(const std::string& name);
  // Opens one of them. Errors: the store's.
  Result<std::unique_ptr<Store>> Open(const std::string& name) const;
  // Collects the garbage of one of them. Errors: kUnsupported unless it is a directory.
  Result<StoreStats> CollectGarbage(const std::string& name) const;

  // Lets the engine use the stores. Says on standard error which cannot be opened: generation goes on.
  void Use(Engine& engine) const;
  // Waits until everything is written, and says on standard error if something was not stored.
  static void Finish(Engine& engine);

 private:
  std::vector<std::string> stores_;
  std::int64_t budget_bytes_ = kDefaultDiskStoreBytes;
};

}  // namespace kvcache::cli
