// The file of a disk store, as one store uses it: it is opened again after another process replaced it, after LMDB gave
// it up, and after it was discarded. An attempt that failed is not made again for a while.
//
// Thread safety: all calls from any number of threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "kvcache/status.h"
#include "store/disk/disk_store.h"
#include "store/disk/lmdb_environment.h"
#include "store/retry_pause.h"

namespace kvcache::store {

class StoreFile {
 public:
  StoreFile(std::string directory, const LmdbOptions& options, SteadyClock clock)
      : directory_(std::move(directory)), options_(options), clock_(std::move(clock)) {}

  // Returns the environment in use, or a new one after LMDB has given that up. Errors: those of InPlace.
  Result<std::shared_ptr<LmdbEnvironment>> Environment();
  // Returns the environment of the file that has the name now: another process may have discarded a damaged one.
  // Makes the directory if no attempt has succeeded yet. Errors: the directory is gone; those of
  // LmdbEnvironment::Open. After an error it makes no attempt for a while, and returns the same error.
  Result<std::shared_ptr<LmdbEnvironment>> InPlace();
  // Returns the environment in use; null before the first attempt that succeeded.
  std::shared_ptr<LmdbEnvironment> Current();

  // Puts an empty file in the place of a damaged one. Returns the objects that are lost. Errors: those of
  // LmdbEnvironment::RemoveFile and InPlace.
  Result<std::int64_t> Discard(LmdbEnvironment& damaged, int error);
  // Says what was wrong with the files, and what was done; empty: nothing.
  std::string repair();
  void AddRepair(const std::string& text);

 private:
  const std::string directory_;
  const LmdbOptions options_;
  const SteadyClock clock_;
  std::mutex opening_mutex_;  // held while the file is looked for and opened again
  RetryPause pause_{std::chrono::seconds(1), std::chrono::seconds(30)};
  Status problem_;  // of the last attempt
  std::mutex mutex_;
  std::shared_ptr<LmdbEnvironment> environment_;
  std::string repair_;
};

}  // namespace kvcache::store
