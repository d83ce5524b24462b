#include "replay/block_baselines.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace kvcache {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

// Returns the tokens of the first blocks of the request for which `has` holds.
template <class Has>
std::int64_t LeadingTokens(const Trace& trace, const TraceRequest& request, Has&& has) {
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < request.blocks.size() && has(i); ++i) {
    tokens += trace.BlockTokens(request, i);
  }
  return tokens;
}

// Blocks in order of their last use.
class UseOrder {
 public:
  explicit UseOrder(std::size_t blocks) : links_(blocks + 1), end_(blocks) {
    links_[end_] = {end_, end_};
  }

  void Remove(std::size_t block) {
    const Link link = links_[block];
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
  }
  void AddLast(std::size_t block) {
    const std::size_t last = links_[end_].before;
    links_[block] = {last, end_};
    links_[last].after = block;
    links_[end_].before = block;
  }
  std::size_t First() const { return links_[end_].after; }

 private:
  struct Link {
    std::size_t before = 0;
    std::size_t after = 0;
  };
  std::vector<Link> links_;
  std::size_t end_;
};

// Returns, for each request and block, the next request with the block, or kNone.
std::vector<std::vector<std::uint32_t>> NextUses(const Trace& trace) {
  std::vector<std::vector<std::uint32_t>> next(trace.requests.size());
  std::vector<std::uint32_t> later(trace.distinct, kNone);
  for (std::size_t r = trace.requests.size(); r-- > 0;) {
    for (const std::uint32_t block : trace.requests[r].blocks) next[r].push_back(later[block]);
    for (const std::uint32_t block : trace.requests[r].blocks) {
      later[block] = static_cast<std::uint32_t>(r);
    }
  }
  return next;
}

}  // namespace

std::int64_t ReusedByLastPrompts(const Trace& trace, int slots) {
  struct Slot {
    const TraceRequest* last = nullptr;
    std::size_t used = 0;
  };
  std::vector<Slot> all(static_cast<std::size_t>(slots));
  std::int64_t reused = 0;
  std::size_t now = 0;
  for (const TraceRequest& request : trace.requests) {
    std::int64_t max = -1;
    Slot* chosen = nullptr;
    const auto oldest = std::min_element(
        all.begin(), all.end(), [](const Slot& a, const Slot& b) { return a.used < b.used; });
    for (Slot& slot : all) {
      const std::int64_t shared = LeadingTokens(trace, request, [&](std::size_t i) {
        return slot.last != nullptr && i < slot.last->blocks.size() &&
               slot.last->blocks[i] == request.blocks[i];
      });
      if (shared > max || (shared == max && slot.used < chosen->used)) {
        max = shared;
        chosen = &slot;
      }
    }
    // What the least recently used slot shares is reused, too.
    if (max * 10 < request.input) {
      chosen = &*oldest;
      max = LeadingTokens(trace, request, [&](std::size_t i) {
        return chosen->last != nullptr && i < chosen->last->blocks.size() &&
               chosen->last->blocks[i] == request.blocks[i];
      });
    }
    reused += max;
    *chosen = {&request, ++now};
  }
  return reused;
}

UnlimitedReuse ReusedByUnlimited(const Trace& trace) {
  UnlimitedReuse result;
  std::vector<bool> cached(trace.distinct);
  for (const TraceRequest& request : trace.requests) {
    result.reused_tokens +=
        LeadingTokens(trace, request, [&](std::size_t i) { return cached[request.blocks[i]]; });
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      if (!cached[request.blocks[i]]) result.held_tokens += trace.BlockTokens(request, i);
      cached[request.blocks[i]] = true;
    }
    result.held_tokens += request.output;
  }
  return result;
}

// An answer is a block behind those of all prompts.
std::int64_t ReusedByLeastRecentlyUsed(const Trace& trace, std::int64_t budget) {
  const std::size_t blocks = trace.distinct + trace.requests.size();
  UseOrder order(blocks);
  std::vector<Position> cached(blocks);  // tokens, or 0
  std::int64_t held = 0;
  std::int64_t reused = 0;
  const auto use = [&](std::size_t block, Position tokens) {
    if (cached[block] > 0) {
      order.Remove(block);
    } else {
      cached[block] = tokens;
      held += tokens;
    }
    order.AddLast(block);
  };
  for (std::size_t r = 0; r < trace.requests.size(); ++r) {
    const TraceRequest& request = trace.requests[r];
    reused +=
        LeadingTokens(trace, request, [&](std::size_t i) { return cached[request.blocks[i]] > 0; });
    if (request.output > 0) use(trace.distinct + r, request.output);
    for (std::size_t i = request.blocks.size(); i-- > 0;) {
      use(request.blocks[i], trace.BlockTokens(request, i));
    }
    while (held > budget) {
      const std::size_t block = order.First();
      order.Remove(block);
      held -= std::exchange(cached[block], 0);
    }
  }
  return reused;
}

std::int64_t ReusedByOptimum(const Trace& trace, std::int64_t budget) {
  struct Cached {
    Position tokens = 0;
    std::uint32_t next = kNone;
  };
  const auto next_uses = NextUses(trace);
  std::vector<Cached> cached(trace.distinct);
  std::priority_queue<std::tuple<std::uint32_t, std::size_t, std::uint32_t>> furthest;
  std::int64_t held = 0;
  std::int64_t reused = 0;
  for (std::size_t r = 0; r < trace.requests.size(); ++r) {
    const TraceRequest& request = trace.requests[r];
    reused += LeadingTokens(trace, request,
                            [&](std::size_t i) { return cached[request.blocks[i]].tokens > 0; });
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      Cached& block = cached[request.blocks[i]];
      if (block.tokens == 0) held += block.tokens = trace.BlockTokens(request, i);
      block.next = next_uses[r][i];
      furthest.emplace(block.next, i, request.blocks[i]);
    }
    while (held > budget) {
      const auto [next, depth, block] = furthest.top();
      furthest.pop();
      if (cached[block].tokens > 0 && cached[block].next == next) {
        held -= std::exchange(cached[block].tokens, 0);
      }
    }
  }
  return reused;
}

}  // namespace kvcache
