// --store, --disk-budget and --memory-budget: where prefixes are kept, and how much of them; --packed-weights and
// --packed-budget: the same for weights that were packed. $KVCACHE_STORE is the default of --store.
// Both name several stores with commas between them.
//
// Thread safety: a value.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/flags/command_line.h"
#include "engine/memory_plan.h"
#include "engine/packed/packed_weights.h"
#include "kvcache/store.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {

// Returns the directory that is used without --store: kvcache in $XDG_CACHE_HOME or ~/.cache. Empty if the
// environment names neither.
std::string DefaultStoreDirectory();

// Reads a number of bytes such as 500M or 10G. Errors: kInvalidArgument.
Result<std::int64_t> ParseBytes(const std::string& text);

// Removing a model removes its packed weights, those in the directory that is used without flags: the first call comes
// before, the second after it, and does nothing while another name has the model's file.
std::string PackedWeightsOf(const std::string& model);
void RemovePackedWeights(const std::string& packed, const std::string& model);

class StoreFlags {
 public:
  // Declares the flags. REQUIRES: `command` is parsed while this lives.
  void Add(FlagSet command);

  // Returns the stores in order, the fastest first: directories, URLs of Redis, "memory". Empty: none.
  std::vector<std::string> names() const;
  // Returns the tier of a store's name.
  static StoreTier TierOf(const std::string& name);
  // Returns a store's name without a password.
  static std::string NameOf(const std::string& name);
  // Returns how memory is divided, with --memory-budget if it is given.
  MemoryPlan plan() const;
  // Returns how many tokens fit into the memory budget besides one context. Errors: kInvalidArgument if not
  // even the context fits.
  Result<std::int64_t> TokensBesideContext(Engine& engine) const;
  // Returns the directory of packed weights: 'packed' in the first directory of stores unless --packed-weights says
  // otherwise; empty: none are kept.
  std::string PackedDirectory() const;
  // Models that are loaded from now on use packed weights. `tell`: hears what was kept, and what went wrong; by default
  // Finish shows it.
  void UsePackedWeights(packed::ModelPanels::Tell tell = TellNotes) const;
  // Opens one of them. Errors: the store's.
  Result<std::unique_ptr<Store>> Open(const std::string& name) const;
  // Collects the garbage of one of them. Errors: kUnsupported unless it is a directory.
  Result<StoreStats> CollectGarbage(const std::string& name) const;

  struct OpenStore {
    std::string name;
    std::shared_ptr<Store> store;
  };
  // What happens to a directory that cannot be opened now: it is not used, or a later call opens it.
  enum class Failed { kUnused, kLater };
  // Opens each of them. Says on standard error which cannot be opened.
  std::vector<OpenStore> OpenEach(Failed failed = Failed::kUnused) const;
  // Returns stores as one; null if there is none.
  static std::shared_ptr<Store> Combine(const std::vector<OpenStore>& stores);
  // Lets the engine use a store, if there is one. Says on standard error if it cannot: generation goes on.
  static void Use(Engine& engine, std::shared_ptr<Store> store);
  void Use(Engine& engine) const { Use(engine, Combine(OpenEach())); }
  // Waits until everything is written, and says on standard error if something was not stored.
  static void Finish(Engine& engine);

 private:
  DiskStoreOptions DiskOptions(const std::string& directory) const {
    return {.directory = directory, .budget_bytes = budget_bytes_};
  }
  Result<std::unique_ptr<Store>> OpenLater(const std::string& name) const;
  static void TellNotes(packed::ModelPanels::Report report, const std::string& text);

  std::vector<std::string> stores_;
  std::int64_t budget_bytes_ = kDefaultDiskStoreBytes;
  std::int64_t memory_bytes_ = 0;
  std::string packed_;  // empty: not given
  std::int64_t packed_bytes_ = static_cast<std::int64_t>(PackedWeightsOptions::kDefaultBudget);
};

}  // namespace kvcache::app
