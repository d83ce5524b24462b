#include "prefix/eviction_order.h"

#include <limits>
#include <utility>

namespace kvcache {

std::size_t EvictionOrder::IndexOf(const PrefixNode& node) {
  Band band = kByWorth;
  if (node.demoted || node.of_class == kOneOffClass) {
    band = kFirst;
  } else if (node.retention == Retention::kShared || (!node.leaf() && node.restore_point)) {
    band = kLast;
  }
  const std::size_t inner = node.leaf() ? 0 : 1;
  return (std::size_t{band} * 2 + inner) * kUseClasses + static_cast<std::size_t>(node.of_class);
}

void EvictionOrder::Update(PrefixNode& node, bool may_go) {
  EvictionEntry& entry = node.eviction;
  if (entry.listed()) entry.unlisted = lists_[entry.list].extract(entry.place);
  if (!may_go) return;
  entry.list = IndexOf(node);
  entry.place = lists_[entry.list].insert(std::move(entry.unlisted)).position;
}

PrefixNode* EvictionOrder::Least(const ReuseHistory& history) const {
  const double now = history.clock();
  for (std::size_t band = 0; band < kBands; ++band) {
    PrefixNode* least = nullptr;
    double least_worth = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < std::size_t{2} * kUseClasses; ++i) {
      const EvictionList& list = lists_[band * 2 * kUseClasses + i];
      const int of_class = static_cast<int>(i % kUseClasses);
      const double share = shares_[i / kUseClasses];
      for (auto at = list.begin(); at != list.end();) {
        PrefixNode* const node = *at;
        const int bucket = ReturnRates::BucketOf(now - node->used);
        const double worth = band == kFirst ? 0.0 : share * history.rates().Worth(of_class, bucket);
        if (worth < least_worth ||
            (worth == least_worth && least != nullptr && node->used < least->used)) {
          least = node;
          least_worth = worth;
        }
        if (bucket == 0 || band == kFirst) break;
        at = list.upper_bound(now - ReturnRates::BucketBegin(bucket));
      }
    }
    if (least != nullptr) return least;
  }
  return nullptr;
}

}  // namespace kvcache
