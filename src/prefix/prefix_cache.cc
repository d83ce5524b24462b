// Requests: what they reuse, and what they leave.
#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "prefix/prefix_cache_impl.h"
#include "prefix/return_policy.h"

namespace kvcache::prefix {
namespace {

constexpr char kNoMemory[] = "no memory for the prefix cache";

// Most prompts of a model begin with the same token, which says nothing of the text.
constexpr Position kCommonStart = 1;
constexpr std::size_t kMaxMisses = 4;  // reasons of one prompt

// Returns the picture that has the key at `at`, or null.
const PrefixRange* PictureAt(std::span<const PrefixRange> pictures, Position at) {
  const auto next = std::upper_bound(
      pictures.begin(), pictures.end(), at,
      [](Position position, const PrefixRange& picture) { return position < picture.begin; });
  if (next == pictures.begin()) return nullptr;
  const PrefixRange& picture = *std::prev(next);
  return at < picture.end ? &picture : nullptr;
}

// Returns the largest length, at most `length`, that ends in no picture.
Position OutsidePictures(std::span<const PrefixRange> pictures, Position length) {
  if (pictures.empty()) return length;
  const PrefixRange* const picture = PictureAt(pictures, length);
  return picture == nullptr ? length : picture->begin;
}

Status CheckPictures(const PrefixPrompt& prompt) {
  Position before = 0;
  for (const PrefixRange& picture : prompt.pictures) {
    const bool is_inside = static_cast<std::size_t>(picture.end) <= prompt.keys.size();
    if (picture.begin < before || picture.end <= picture.begin || !is_inside) {
      return InvalidArgument(StrCat("a picture has the keys [", picture.begin, ", ", picture.end,
                                    ") behind one that ends at ", before,
                                    "; they must ascend within the prompt of ",
                                    prompt.keys.size()));
    }
    before = picture.end;
  }
  return Status::Ok();
}

}  // namespace

PrefixCacheImpl::PrefixCacheImpl(PrefixStates& states, PrefixOptions options)
    : states_(states),
      options_(options),
      policy_(std::make_unique<ReturnPolicy>(options_)),
      trie_(*policy_) {}

PrefixCacheImpl::~PrefixCacheImpl() {
  trie_.ForEach([&](PrefixNode& node) {
    if (node.state != PrefixState::kNone) states_.Drop(node.state);
  });
}

Status PrefixCacheImpl::CheckPrompt(const PrefixPrompt& prompt) const {
  if (prompt.keys.empty()) return InvalidArgument("the prompt has no keys");
  Position before = 0;
  for (const Position point : prompt.restore_points) {
    if (point <= before || static_cast<std::size_t>(point) > prompt.keys.size()) {
      return InvalidArgument(StrCat("a restore point at ", point, " after one at ", before,
                                    "; they must ascend within the prompt of ",
                                    prompt.keys.size()));
    }
    before = point;
  }
  return CheckPictures(prompt);
}

// A divisible state deeper down restores every length above it. Nearly every leaf has one: only a leaf
// in use, whose state could not be cut, has none.
PrefixNode* PrefixCacheImpl::StateBelow(PrefixNode* top) const {
  PrefixNode* node = top;
  while (node->state == PrefixState::kNone) {
    if (!node->leaf()) {
      node = node->first_child;
      continue;
    }
    while (node != top && node->next == nullptr) node = node->parent;
    if (node == top) return nullptr;
    node = node->next;
  }
  return node;
}

PrefixCacheImpl::Found PrefixCacheImpl::Find(const PrefixPrompt& prompt, PrefixNode* root) const {
  Found found;
  PrefixMatch& match = found.match;
  const auto size = static_cast<Position>(prompt.keys.size());
  PrefixTrie::Place place{root, 0};
  if (root != nullptr) place = trie_.Match(*root, prompt.keys);
  match.matched = OutsidePictures(prompt.pictures, std::min(place.length, size - 1));
  found.node = place.node;
  if (options_.divisible) {
    while (found.node != root && found.node->begin() >= match.matched) {
      found.node = found.node->parent;
    }
    match.resumed = match.matched;
    const PrefixNode* holder = nullptr;
    while (found.node != root && (holder = StateBelow(found.node)) == nullptr) {
      found.node = found.node->parent;
      match.resumed = found.node->end;
    }
    if (holder != nullptr) match.state = holder->state;
  } else {
    while (found.node != root &&
           (found.node->end > match.matched || found.node->state == PrefixState::kNone)) {
      found.node = found.node->parent;
    }
    if (found.node != root) {
      match.state = found.node->state;
      match.resumed = found.node->end;
    }
  }
  if (!prompt.pictures.empty()) LeavePicture(prompt, root, found);
  if (found.node == root) match.resumed = 0;

  found.length = place.length;
  if (place.length < size && place.node != nullptr) {
    const PrefixNode* const child = place.inside() ? place.node : place.node->first_child;
    if (child != nullptr) {
      const auto at = static_cast<std::size_t>(place.length - child->begin());
      match.difference = {place.length, child->keys[at],
                          prompt.keys[static_cast<std::size_t>(place.length)]};
    }
  }
  found.match.missed.reserve(kMaxMisses);
  return found;
}

// A node ends inside a picture if its request stopped there.
void PrefixCacheImpl::LeavePicture(const PrefixPrompt& prompt, const PrefixNode* root,
                                   Found& found) const {
  PrefixMatch& match = found.match;
  const Position length = OutsidePictures(prompt.pictures, match.resumed);
  if (length == match.resumed) return;
  match.resumed = options_.divisible ? length : 0;
  while (found.node != root && found.node->begin() >= match.resumed) {
    found.node = found.node->parent;
  }
}

// Allocates nothing: `missed` has room.
PrefixMatch PrefixCacheImpl::WithMisses(Found found, const PrefixPrompt& prompt, Position known) {
  const auto size = static_cast<Position>(prompt.keys.size());
  PrefixMatch match = std::move(found.match);
  const auto miss = [&](Position tokens, MissReason reason) {
    if (tokens > 0) match.missed.push_back({tokens, reason});
  };
  miss(match.matched - match.resumed, MissReason::kNoState);
  const Position end = std::min(found.length, size - 1);
  miss(end - match.matched, MissReason::kPartOfPicture);
  if (found.length == size) {
    miss(1, MissReason::kLastToken);
  } else {
    const Position evicted = std::clamp(known, end, size) - end;
    miss(evicted, MissReason::kEvicted);
    const Position at = match.difference.position;
    const bool is_other = at >= 0 && PictureAt(prompt.pictures, at) != nullptr;
    miss(size - end - evicted, is_other            ? MissReason::kOtherPicture
                               : at > kCommonStart ? MissReason::kDiffers
                                                   : MissReason::kNew);
  }
  return match;
}

// Multiples of the bound, so that requests with the same beginning have states at the same lengths.
std::vector<Position> PrefixCacheImpl::Captures(const Request& request, Position from,
                                                Position matched) const {
  std::vector<Position> lengths;
  if (options_.divisible) return lengths;
  const Position bound = options_.recompute_bound;
  const Position last = request.prompt - 1;
  for (std::int64_t at = from / bound * std::int64_t{bound} + bound; at < last; at += bound) {
    lengths.push_back(static_cast<Position>(at));
  }
  lengths.insert(lengths.end(), request.restore_points.begin(), request.restore_points.end());
  lengths.push_back(matched);
  lengths.push_back(last);
  for (Position& at : lengths) at = OutsidePictures(request.pictures, at);
  std::erase_if(lengths, [&](Position at) { return at <= from || at >= request.prompt; });
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

Result<PrefixMatch> PrefixCacheImpl::Probe(const PrefixPrompt& prompt) const {
  KVCACHE_RETURN_IF_ERROR(CheckPrompt(prompt));
  return Guarded(kNoMemory, [&]() -> Result<PrefixMatch> {
    const Position known = policy_->Known(prompt.keys, prompt.salt);
    return WithMisses(Find(prompt, trie_.FindRoot(prompt.salt)), prompt, known);
  });
}

Result<PrefixPlan> PrefixCacheImpl::Begin(const PrefixPrompt& prompt, double now) {
  KVCACHE_RETURN_IF_ERROR(CheckPrompt(prompt));
  now_ = std::max(now_, now);
  return Guarded(kNoMemory, [&]() -> Result<PrefixPlan> {
    Request request{.salt = prompt.salt,
                    .keys = {prompt.keys.begin(), prompt.keys.end()},
                    .restore_points = {prompt.restore_points.begin(), prompt.restore_points.end()},
                    .pictures = {prompt.pictures.begin(), prompt.pictures.end()},
                    .prompt = static_cast<Position>(prompt.keys.size())};
    PrefixNode& root = trie_.Root(prompt.salt);
    Found found = Find(prompt, &root);
    PrefixPlan plan;
    plan.captures = Captures(request, found.match.resumed, found.match.matched);
    plan.request = PrefixRequest{next_request_};
    PrefixNode* node = found.node;
    const Position resumed = found.match.resumed;
    if (resumed > 0 && resumed < node->end) node = &SplitAt(*node, resumed);
    request.extended = resumed;
    const auto [slot, inserted] = requests_.emplace(next_request_, std::move(request));
    (void)inserted;
    ++next_request_;
    Protect(slot->second, *node);
    const Position known = policy_->Begin(prompt.keys, prompt.salt);
    slot->second.known = known;
    static_cast<PrefixMatch&>(plan) = WithMisses(std::move(found), prompt, known);
    return plan;
  });
}

std::vector<Position> PrefixCacheImpl::NotRestored(PrefixRequest request) {
  const auto found = requests_.find(static_cast<std::uint64_t>(request));
  if (found == requests_.end()) return {};
  Request& own = found->second;
  const Position before = std::exchange(own.extended, 0);
  Protect(own, *trie_.FindRoot(own.salt));
  try {
    return Captures(own, 0, before);
  } catch (const std::bad_alloc&) {
    return {};
  }
}

Status PrefixCacheImpl::Append(PrefixRequest request, std::span<const PrefixKey> keys) {
  const auto found = requests_.find(static_cast<std::uint64_t>(request));
  if (found == requests_.end()) return InvalidArgument("the request is unknown");
  std::vector<PrefixKey>& own = found->second.keys;
  return Guarded(kNoMemory, [&] { own.insert(own.end(), keys.begin(), keys.end()); });
}

Status PrefixCacheImpl::Extend(PrefixRequest request, Position length, PrefixState state) {
  const auto found = requests_.find(static_cast<std::uint64_t>(request));
  if (found == requests_.end() || length < 1 ||
      static_cast<std::size_t>(length) > found->second.keys.size()) {
    states_.Drop(state);
    return InvalidArgument(found == requests_.end()
                               ? std::string("the request is unknown")
                               : StrCat("a state after ", length, " tokens of a request of ",
                                        found->second.keys.size()));
  }
  Request& own = found->second;
  try {
    const auto keys = std::span<const PrefixKey>(own.keys).first(static_cast<std::size_t>(length));
    const PrefixTrie::Place place = trie_.Match(trie_.Root(own.salt), keys);
    PrefixNode* node = place.node;
    const bool covered = place.length == length;
    if (place.inside() && !(covered && options_.divisible)) node = &SplitAt(*node, place.length);
    if (!covered) node = &AddLeaf(*node, own, length);
    // A divisible state lies in a leaf and restores every length above. A leaf in use may have lost its
    // own.
    const bool stateless = node->state == PrefixState::kNone && node->end == length;
    const bool keeps = stateless && (!options_.divisible || node->leaf());
    if (keeps) {
      SetState(*node, state);
    } else {
      states_.Drop(state);
    }
    const auto& points = own.restore_points;
    const bool wanted = std::binary_search(points.begin(), points.end(), length);
    if (wanted && node->end == length) node->restore_point = true;
    own.extended = std::max(own.extended, length);
    if (node->end >= own.node->end) Protect(own, *node);
    Relist(*node);
    return Status::Ok();
  } catch (const std::bad_alloc&) {
    states_.Drop(state);
    return OutOfMemory(kNoMemory);
  }
}

Status PrefixCacheImpl::FollowedBy(std::span<const PrefixKey> text, std::size_t min,
                                   std::uint64_t salt, std::size_t max,
                                   std::vector<PrefixKey>& keys) const {
  return Guarded(kNoMemory, [&] { continuations_.Find(text, min, salt, max, keys); });
}

// All that the request evaluated counts as used, also what it could not keep.
void PrefixCacheImpl::Close(PrefixRequest request, double now) {
  now_ = std::max(now_, now);
  const auto found = requests_.find(static_cast<std::uint64_t>(request));
  if (found == requests_.end()) return;
  Request& own = found->second;
  PrefixNode& node = *own.node;
  --node.live;
  ++uses_;
  try {
    Touch(own);
  } catch (const std::bad_alloc&) {
    // The prefix keeps its former time of use.
  }
  Relist(node);
  MergeUpwards(RemoveStateless(&node));
  requests_.erase(found);
}

void PrefixCacheImpl::Touch(const Request& request) {
  policy_->End({.keys = request.keys,
                .salt = request.salt,
                .prompt = request.prompt,
                .known = request.known});
  const auto keys =
      std::span<const PrefixKey>(request.keys).first(static_cast<std::size_t>(request.extended));
  PrefixNode* node = trie_.Match(trie_.Root(request.salt), keys).node;
  for (; !node->root(); node = node->parent) {
    node->used = uses_;
    policy_->Touch(*node);
    Relist(*node);
  }
}

void PrefixCacheImpl::Protect(Request& request, PrefixNode& node) {
  ++node.live;
  Relist(node);
  PrefixNode* const before = std::exchange(request.node, &node);
  if (before == nullptr) return;
  --before->live;
  Relist(*before);
}

PrefixNode& PrefixCacheImpl::SplitAt(PrefixNode& node, Position length) {
  PrefixNode& upper = trie_.Split(node, length);
  if (options_.finds_continuations) continuations_.Split(upper);
  Relist(upper);
  return upper;
}

PrefixNode& PrefixCacheImpl::AddLeaf(PrefixNode& parent, const Request& request, Position length) {
  const auto keys = std::span<const PrefixKey>(request.keys);
  const auto begin = static_cast<std::size_t>(parent.end);
  PrefixNode& leaf =
      trie_.AddLeaf(parent, keys.subspan(begin, static_cast<std::size_t>(length) - begin));
  if (options_.finds_continuations) continuations_.Added(leaf, request.salt);
  leaf.used = uses_;
  if (options_.divisible && parent.state != PrefixState::kNone) DropState(parent);
  Relist(parent);
  return leaf;
}

void PrefixCacheImpl::SetState(PrefixNode& node, PrefixState state) {
  node.state = state;
  ++state_count_;
  Relist(node);
}

void PrefixCacheImpl::DropState(PrefixNode& node) {
  if (node.state == PrefixState::kNone) return;
  states_.Drop(std::exchange(node.state, PrefixState::kNone));
  --state_count_;
  Relist(node);
}

bool PrefixCacheImpl::MayGo(const PrefixNode& node) const {
  if (node.root() || node.live > 0 || node.pinned_until > now_) return false;
  return node.leaf() || node.state != PrefixState::kNone;
}

void PrefixCacheImpl::Relist(PrefixNode& node) {
  if (!node.root()) policy_->Offer(node, MayGo(node));
}

}  // namespace kvcache::prefix

namespace kvcache {

std::string_view MissReasonName(MissReason reason) {
  switch (reason) {
    case MissReason::kNew: return "new";
    case MissReason::kDiffers: return "differs";
    case MissReason::kEvicted: return "evicted";
    case MissReason::kNoState: return "no restore point";
    case MissReason::kRestoreFailed: return "restore failed";
    case MissReason::kLastToken: return "last token";
    case MissReason::kOtherPicture: return "other picture";
    case MissReason::kPartOfPicture: return "part of a picture";
  }
  return "unknown";
}

Result<std::unique_ptr<PrefixCache>> PrefixCache::Make(PrefixStates& states,
                                                       PrefixOptions options) {
  if (options.recompute_bound < 1) {
    return InvalidArgument(
        StrCat("the recompute bound is ", options.recompute_bound, " tokens, expected at least 1"));
  }
  if (options.state_tokens < 0 || options.history_tokens < 0) {
    return InvalidArgument(StrCat("the state tokens are ", options.state_tokens,
                                  " and the history ", options.history_tokens,
                                  " tokens, expected at least 0"));
  }
  return Guarded(prefix::kNoMemory, [&]() -> Result<std::unique_ptr<PrefixCache>> {
    return std::unique_ptr<PrefixCache>(std::make_unique<prefix::PrefixCacheImpl>(states, options));
  });
}

}  // namespace kvcache
