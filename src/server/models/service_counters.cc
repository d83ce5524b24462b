#include "server/models/service_counters.h"

#include <algorithm>

namespace kvcache::server {
namespace {

template <typename Array>
void AddEach(Array& sums, const Array& others) {
  std::transform(sums.begin(), sums.end(), others.begin(), sums.begin(),
                 [](auto a, auto b) { return a + b; });
}

}  // namespace

void SecondsHistogram::Add(double seconds) {
  const auto bound = std::lower_bound(kSecondsBounds.begin(), kSecondsBounds.end(), seconds);
  ++counts[static_cast<std::size_t>(bound - kSecondsBounds.begin())];
  sum += seconds;
}

SecondsHistogram& SecondsHistogram::operator+=(const SecondsHistogram& other) {
  AddEach(counts, other.counts);
  sum += other.sum;
  return *this;
}

ServiceCounters& ServiceCounters::operator+=(const ServiceCounters& other) {
  requests += other.requests;
  AddEach(ended, other.ended);
  generated_tokens += other.generated_tokens;
  evaluated_tokens += other.evaluated_tokens;
  computed_tokens += other.computed_tokens;
  reused_tokens += other.reused_tokens;
  AddEach(reused_by_tier, other.reused_by_tier);
  AddEach(missed_tokens, other.missed_tokens);
  evicted_tokens += other.evicted_tokens;
  parked += other.parked;
  first_token += other.first_token;
  between_tokens += other.between_tokens;
  request += other.request;
  running += other.running;
  waiting += other.waiting;
  held_bytes += other.held_bytes;
  budget_bytes += other.budget_bytes;
  prefix_tokens += other.prefix_tokens;
  prefix_states += other.prefix_states;
  return *this;
}

ServiceCounters ServiceCounters::WithoutNow() const {
  ServiceCounters past = *this;
  past.running = past.waiting = past.prefix_tokens = past.prefix_states = 0;
  past.held_bytes = past.budget_bytes = 0;
  return past;
}

}  // namespace kvcache::server
