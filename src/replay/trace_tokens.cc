#include "replay/trace_tokens.h"

#include <algorithm>

namespace kvcache {
namespace {

// The finaliser of MurmurHash3: the same tokens in every process.
std::uint64_t Mix(std::uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

// Blocks have even numbers and answers odd ones. The base is even, so the first digit tells them apart.
TraceTokens::TraceTokens(const Trace& trace, std::int32_t vocabulary)
    : trace_(trace), base_(static_cast<std::uint64_t>(vocabulary) & ~std::uint64_t{1}) {
  const std::uint64_t max = 2 * std::max<std::uint64_t>(trace.distinct, trace.requests.size()) + 1;
  for (std::uint64_t reach = base_; reach <= max; reach *= base_) ++digits_;
}

void TraceTokens::Append(std::uint64_t number, Position count,
                         std::vector<std::int32_t>& tokens) const {
  std::uint64_t rest = number;
  for (Position i = 0; i < count; ++i) {
    const std::uint64_t token =
        i < digits_ ? rest % base_ : Mix((number << 32) + static_cast<std::uint64_t>(i)) % base_;
    tokens.push_back(static_cast<std::int32_t>(token));
    rest /= base_;
  }
}

void TraceTokens::AppendPrompt(std::size_t i, std::vector<std::int32_t>& tokens) const {
  const TraceRequest& request = trace_.requests[i];
  for (std::size_t b = 0; b < request.blocks.size(); ++b) {
    Append(2 * std::uint64_t{request.blocks[b]}, trace_.BlockTokens(request, b), tokens);
  }
}

void TraceTokens::AppendAnswer(std::size_t i, std::vector<std::int32_t>& tokens) const {
  Append(2 * std::uint64_t{i} + 1, trace_.requests[i].output, tokens);
}

}  // namespace kvcache
