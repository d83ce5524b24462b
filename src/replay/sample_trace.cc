#include "replay/sample_trace.h"

#include <random>
#include <vector>

namespace kvcache {
namespace {

struct Conversation {
  std::vector<std::uint32_t> whole{};  // blocks
  TraceRequest last{};
};

}  // namespace

Trace MakeSampleTrace(std::uint32_t seed, int requests, int block_size) {
  std::mt19937 random(seed);
  Trace trace{.block_size = block_size, .distinct = 1};
  std::vector<Conversation> all(12);
  for (int i = 0; i < requests; ++i) {
    Conversation& one = all[random() % all.size()];
    if (one.whole.empty() || random() % 12 == 0) one = {.whole = {0}};
    TraceRequest request{.seconds = i * 0.5, .output = static_cast<Position>(random() % 40)};
    if (one.last.input > 0 && random() % 8 == 0) {
      request = one.last;
    } else {
      for (std::size_t more = random() % 4; more > 0; --more) one.whole.push_back(trace.distinct++);
      request.blocks = one.whole;
      const auto partial = static_cast<Position>(random() % static_cast<std::uint32_t>(block_size));
      if (partial > 0) request.blocks.push_back(trace.distinct++);
      request.input = static_cast<Position>(one.whole.size()) * block_size + partial;
      one.last = request;
    }
    trace.requests.push_back(request);
  }
  return trace;
}

}  // namespace kvcache
