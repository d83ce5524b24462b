#include "prefix/return_policy.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "prefix/prefix_node.h"

namespace kvcache::prefix {

// Nodes that were used together go in the order in which they were made.
bool ReturnPolicy::UsedBefore::operator()(const Entry* a, const Entry* b) const {
  return a->used != b->used ? a->used < b->used : a->node->number < b->node->number;
}
bool ReturnPolicy::UsedBefore::operator()(double time, const Entry* entry) const {
  return time < entry->used;
}
bool ReturnPolicy::UsedBefore::operator()(const Entry* entry, double time) const {
  return entry->used < time;
}

ReturnPolicy::ReturnPolicy(const PrefixOptions& options) : history_(options.history_tokens) {
  const auto bound = static_cast<double>(options.recompute_bound);
  const Position state = options.divisible ? 0 : options.state_tokens;
  shares_[kLeaf] = bound / (bound + state);
  shares_[kInner] = shares_[kRestorePoint] =
      bound / 16 / std::max<Position>(1, options.state_tokens);
}

ReturnPolicy::Entry& ReturnPolicy::EntryOf(const PrefixNode& node) {
  return static_cast<Entry&>(*node.hook);
}

Position ReturnPolicy::Begin(std::span<const PrefixKey> prompt, std::uint64_t salt) {
  const Position known = history_.Return(prompt, salt);
  history_.Pass(static_cast<Position>(prompt.size()));
  return known;
}

Position ReturnPolicy::Known(std::span<const PrefixKey> prompt, std::uint64_t salt) const {
  return history_.Find(prompt, salt);
}

// Time passes, so that requests that end between two prompts have times of their own.
void ReturnPolicy::End(const Use& use) {
  history_.Pass(1);
  groups_ = history_.Use(use.keys, use.salt,
                         {.answer = static_cast<Position>(use.keys.size()) - use.prompt,
                          .new_tokens = use.prompt - use.known});
}

std::unique_ptr<EvictionPolicy::Hook> ReturnPolicy::Track(PrefixNode& node) {
  auto entry = std::make_unique<Entry>();
  entry->node = &node;
  entry->of_class = UseClassOf({.uses = 1});
  entry->used = history_.clock();
  List list;
  entry->unlisted = list.extract(list.insert(entry.get()).first);
  return entry;
}

void ReturnPolicy::Divide(PrefixNode& node, const PrefixNode& lower) {
  EntryOf(node).of_class = EntryOf(lower).of_class;
  EntryOf(node).used = EntryOf(lower).used;
}

// The text up to the child's end was used as often as its beginning, each time with a longer end.
void ReturnPolicy::Merge(const PrefixNode& node, PrefixNode& child) {
  Offer(child, false);
  EntryOf(child).of_class = EntryOf(node).of_class;
  EntryOf(child).used = EntryOf(node).used;
}

// A node that several groups share belongs to the one that has its middle.
void ReturnPolicy::Touch(PrefixNode& node) {
  Offer(node, false);
  const Position middle = node.begin() + (node.end - node.begin()) / 2;
  const auto after = std::upper_bound(
      groups_.begin(), groups_.end(), middle,
      [](Position at, const ReuseHistory::GroupAt& group) { return at < group.begin; });
  Entry& entry = EntryOf(node);
  entry.of_class = std::prev(after)->of_class;
  entry.used = history_.clock();
}

std::size_t ReturnPolicy::ListOf(const PrefixNode& node, const Entry& entry) {
  const Part part = node.leaf() ? kLeaf : node.restore_point ? kRestorePoint : kInner;
  return std::size_t{part} * kUseClasses + static_cast<std::size_t>(entry.of_class);
}

void ReturnPolicy::Offer(PrefixNode& node, bool may_go) {
  Entry& entry = EntryOf(node);
  if (entry.listed()) entry.unlisted = lists_[entry.list].extract(entry.place);
  if (!may_go) return;
  entry.list = ListOf(node, entry);
  entry.place = lists_[entry.list].insert(std::move(entry.unlisted)).position;
}

bool ReturnPolicy::IsOffered(const PrefixNode& node) const {
  return EntryOf(node).listed();
}

void ReturnPolicy::FindLeast(Part part, Min& min) const {
  const double now = history_.clock();
  for (int of_class = 0; of_class < kUseClasses; ++of_class) {
    const List& list = lists_[std::size_t{part} * kUseClasses + static_cast<std::size_t>(of_class)];
    for (auto at = list.begin(); at != list.end();) {
      Entry* const entry = *at;
      const int bucket = ReturnRates::BucketOf(now - entry->used);
      const double worth = shares_[part] * history_.rates().Worth(of_class, bucket);
      const bool first = min.entry == nullptr || worth < min.worth ||
                         (worth == min.worth && UsedBefore()(entry, min.entry));
      if (first) min = {entry, worth};
      if (bucket == 0) break;
      at = list.upper_bound(now - ReturnRates::BucketBegin(bucket));
    }
  }
}

// States at restore points of the caller go last: the next prompt probably continues from one.
PrefixNode* ReturnPolicy::Next(std::int64_t tokens) {
  history_.SetHeld(tokens);
  Min min;
  FindLeast(kLeaf, min);
  FindLeast(kInner, min);
  if (min.entry == nullptr) FindLeast(kRestorePoint, min);
  return min.entry == nullptr ? nullptr : min.entry->node;
}

std::int64_t ReturnPolicy::BytesFor(std::int64_t nodes) const {
  constexpr std::int64_t kPlace = 6 * sizeof(void*);  // in a list
  return history_.bytes() + nodes * static_cast<std::int64_t>(sizeof(Entry) + kPlace);
}

}  // namespace kvcache::prefix
