#include "store/disk/store_file.h"

#include <algorithm>

#include "base/strings.h"
#include "store/disk/lmdb_calls.h"

namespace kvcache::store {

Result<std::shared_ptr<LmdbEnvironment>> StoreFile::Environment() {
  auto environment = Current();
  if (environment != nullptr && environment->IsOpen()) return environment;
  return InPlace();
}

std::shared_ptr<LmdbEnvironment> StoreFile::Current() {
  const std::lock_guard lock(mutex_);
  return environment_;
}

Result<std::shared_ptr<LmdbEnvironment>> StoreFile::InPlace() {
  const std::lock_guard one_at_a_time(opening_mutex_);
  const auto environment = Current();
  if (environment != nullptr && environment->IsInPlace()) {
    pause_.Worked();
    return environment;
  }
  if (pause_.Left(clock_()) > RetryPause::Clock::duration::zero()) return problem_;
  const bool is_first = environment == nullptr;
  const bool was_removed = !is_first && environment->IsOpen();
  auto opened =
      LmdbEnvironment::Open(is_first ? directory_ : environment->directory(), options_,
                            is_first ? MissingDirectory::kMake : MissingDirectory::kRefuse);
  if (!opened.ok()) {
    pause_.Failed(clock_());
    problem_ = std::move(opened).TakeStatus();
    if (!is_first) {
      problem_ = std::move(problem_).WithContext(
          was_removed ? "the store's file was removed"
                      : "the store's file is opened again after an error");
    }
    return problem_;
  }
  pause_.Worked();
  AddRepair((*opened)->repair());
  const std::lock_guard lock(mutex_);
  environment_ = *opened;
  return environment_;
}

Result<std::int64_t> StoreFile::Discard(LmdbEnvironment& damaged, int error) {
  if (!damaged.IsInPlace()) return 0;  // another thread discarded it
  std::int64_t lost = 0;
  (void)damaged.Read([&](MDB_txn* transaction) {
    MDB_stat stat{};
    const int counted = TableStat(transaction, damaged.tables().usage, stat);
    if (counted == 0) lost = static_cast<std::int64_t>(stat.ms_entries);
    return counted;
  });
  const Status why = damaged.Error("use", error);
  KVCACHE_RETURN_IF_ERROR(damaged.RemoveFile());
  AddRepair(StrCat(why.message(), "; the file was discarded, with ", lost, " objects"));
  KVCACHE_RETURN_IF_ERROR(InPlace().status());
  return lost;
}

std::string StoreFile::repair() {
  const std::lock_guard lock(mutex_);
  return repair_;
}

// What is found again and again is said once.
void StoreFile::AddRepair(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (text.empty() || repair_.find(text) != std::string::npos) return;
  repair_ = repair_.empty() ? text : StrCat(repair_, "; ", text);
}

}  // namespace kvcache::store
