#include "engine/pictures/picture_rows.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {

EmbeddedPtr PictureRows::Find(const Picture& picture) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const EmbeddedPtr& rows) {
    return rows->name == picture.name();
  });
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, found);
  return kept_.front();
}

Result<EmbeddedPtr> PictureRows::Advance(const PicturePtr& picture, int step_rows,
                                         const std::function<bool()>& stops) {
  if (EmbeddedPtr kept = Find(*picture); kept != nullptr) return kept;
  const auto problem = [&] { return StrCat("no memory for the ", picture->cells(), " rows"); };
  EmbeddedPtr complete;
  const Status status = Guarded(problem, [&]() -> Status {
    if (current_ == nullptr || current_->name() != picture->name()) {
      current_ = nullptr;
      KVCACHE_RETURN_IF_ERROR(tower_->Begin(*picture));
      current_ = picture;
    }
    while (!tower_->done()) {
      KVCACHE_RETURN_IF_ERROR(tower_->Step(step_rows));
      if (!tower_->done() && stops()) return Status::Ok();
    }
    auto rows = std::make_shared<EmbeddedPicture>();
    rows->name = picture->name();
    rows->row_size = tower_->row_size();
    rows->values.resize(static_cast<std::size_t>(rows->row_size) *
                        static_cast<std::size_t>(picture->cells()));
    tower_->CopyRows(rows->values.data());
    std::erase_if(made_, [](const auto& each) { return each.expired(); });
    made_.push_back(rows);
    ++runs_;
    complete = rows;
    Keep(std::move(rows));
    return Status::Ok();
  });
  if (!status.ok() || complete != nullptr) current_ = nullptr;
  if (!status.ok()) return status;
  return complete;
}

Result<EmbeddedPtr> PictureRows::Compute(const PicturePtr& picture,
                                         const std::atomic<bool>* interrupt) {
  const auto is_interrupted = [&] {
    return interrupt != nullptr && interrupt->load(std::memory_order_relaxed);
  };
  KVCACHE_ASSIGN_OR_RETURN(EmbeddedPtr rows,
                           Advance(picture, PictureTower::kMaxStepRows, is_interrupted));
  if (rows == nullptr) return Status{StatusCode::kCancelled, "interrupted"};
  return rows;
}

void PictureRows::Drop() {
  kept_.clear();
  if (current_ == nullptr) tower_->Release();
}

std::int64_t PictureRows::HeldBytes() const {
  std::int64_t bytes = 0;
  std::int64_t most = 0;  // of rows that only requests have
  for (const auto& made : made_) {
    const EmbeddedPtr rows = made.lock();
    if (rows == nullptr) continue;
    bytes += rows->bytes();
    if (std::ranges::find(kept_, rows) == kept_.end()) most = std::max(most, rows->bytes());
  }
  return bytes - most;
}

std::int64_t PictureRows::KeptBytes() const {
  std::int64_t bytes = 0;
  for (const EmbeddedPtr& rows : kept_) bytes += rows->bytes();
  return bytes;
}

void PictureRows::Keep(EmbeddedPtr rows) {
  if (rows->bytes() > kMaxKeptBytes) return;
  kept_.push_front(std::move(rows));
  while (KeptBytes() > kMaxKeptBytes) kept_.pop_back();
}

}  // namespace kvcache
