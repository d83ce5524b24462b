#include "store/tiers/tier_moves.h"

#include <cstring>
#include <utility>

namespace kvcache::store {

TierMoves::TierMoves(const std::vector<std::shared_ptr<Store>>& tiers, MoveObjects moves)
    : tiers_(tiers) {
  if (tiers.size() < 2 || moves == MoveObjects::kNo) return;
  up_ =
      std::make_unique<WriteBehind>(*tiers.front(), kMaxWaitingBytes,
                                    [this](const ObjectId& id, std::span<const std::byte> payload) {
                                      return MoveUp(id, payload);
                                    });
  for (std::size_t from = 0; from + 1 < tiers.size(); ++from) {
    down_.push_back(std::make_unique<WriteBehind>(
        *tiers[from + 1], kMaxWaitingBytes,
        [this, from](const ObjectId& id, std::span<const std::byte> payload) {
          return MoveDown(from, id, payload);
        }));
  }
  // Nothing throws from here on: a hook is never left behind without its queue.
  for (std::size_t from = 0; from < down_.size(); ++from) {
    tiers[from]->SetEvictionHook(
        [queue = down_[from].get()](const ObjectId& id, std::span<const std::byte> payload) {
          Add(*queue, id, payload);
        });
  }
}

// A move up can evict, and a move down too: the queues of the earlier tiers end first.
TierMoves::~TierMoves() {
  up_.reset();
  for (std::size_t from = 0; from < down_.size(); ++from) {
    tiers_[from]->SetEvictionHook(nullptr);
    down_[from].reset();
  }
}

void TierMoves::CopyUp(const ObjectId& id, std::span<const std::byte> payload) {
  if (up_ != nullptr) Add(*up_, id, payload);
}

void TierMoves::Add(WriteBehind& queue, const ObjectId& id, std::span<const std::byte> payload) {
  if (queue.waiting_bytes() > 0 && queue.waiting_bytes() + std::ssize(payload) > kMaxWaitingBytes) {
    return;  // before it is copied
  }
  auto bytes = StoreBytes::Make(payload.size());
  if (!bytes.ok()) return;
  if (!payload.empty()) std::memcpy(bytes->data.get(), payload.data(), payload.size());
  (void)queue.Add(id, *std::move(bytes), 0);
}

Status TierMoves::MoveUp(const ObjectId& id, std::span<const std::byte> payload) {
  Status first;
  for (std::size_t tier = 0; tier + 1 < tiers_.size(); ++tier) {
    const auto has = tiers_[tier]->Contains(id);
    if (has.ok() && *has) break;
    Status status = has.ok() ? tiers_[tier]->Put(id, payload) : has.status();
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status TierMoves::MoveDown(std::size_t from, const ObjectId& id,
                           std::span<const std::byte> payload) {
  for (std::size_t later = from + 1; later < tiers_.size(); ++later) {
    const auto has = tiers_[later]->Contains(id);
    if (has.ok() && *has) return Status::Ok();
  }
  return tiers_[from + 1]->Put(id, payload);
}

void TierMoves::Cancel(const ObjectId& id) {
  if (up_ != nullptr) up_->Cancel(id);
  for (const auto& queue : down_) queue->Cancel(id);
}

void TierMoves::Flush() {
  if (up_ != nullptr) up_->Flush();
  for (const auto& queue : down_) queue->Flush();
}

}  // namespace kvcache::store
