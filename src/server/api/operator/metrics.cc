#include "server/api/operator/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <string>
#include <utility>
#include <vector>

namespace kvcache::server::operate {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class Families {
 public:
  // Adds a family. Add and AddHistogram fill the last one.
  void Begin(const char* name, const char* help, MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  void Add(double value, const char* label = nullptr, std::string label_value = "") {
    ClientMetric metric;
    if (label != nullptr) metric.label.push_back({label, std::move(label_value)});
    if (families_.back().type == MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }
  void Counter(const char* name, const char* help, std::int64_t value) {
    Begin(name, help, MetricType::Counter);
    Add(static_cast<double>(value));
  }
  void Gauge(const char* name, const char* help, std::int64_t value) {
    Begin(name, help, MetricType::Gauge);
    Add(static_cast<double>(value));
  }
  void Histogram(const char* name, const char* help, const SecondsHistogram& values) {
    Begin(name, help, MetricType::Histogram);
    ClientMetric metric;
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < values.counts.size(); ++i) {
      count += static_cast<std::uint64_t>(values.counts[i]);
      // The serializer adds the bucket without a bound.
      if (i < kSecondsBounds.size()) metric.histogram.bucket.push_back({count, kSecondsBounds[i]});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = values.sum;
    families_.back().metric.push_back(std::move(metric));
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  std::vector<MetricFamily> families_;
};

void AddRequests(const ServiceCounters& now, Families& families) {
  families.Counter("kvcache_requests_total", "Requests that were submitted", now.requests);
  families.Begin("kvcache_requests_ended_total", "Requests that ended, by their end",
                 MetricType::Counter);
  for (std::size_t i = 0; i < now.ended.size(); ++i) {
    const bool failed = i == kFailedEnd;
    families.Add(static_cast<double>(now.ended[i]), "end",
                 failed ? "failed" : std::string(StopReasonName(static_cast<StopReason>(i))));
  }
  families.Gauge("kvcache_requests_running", "Requests that have not ended", now.running);
  families.Gauge("kvcache_requests_waiting", "Of these, requests without a sequence", now.waiting);
  families.Counter("kvcache_requests_parked_total", "Times that requests made room for others",
                   now.parked);
  families.Histogram("kvcache_time_to_first_token_seconds",
                     "From a request to the first token of its answer", now.first_token);
  families.Histogram("kvcache_time_between_tokens_seconds", "Between two tokens of an answer",
                     now.between_tokens);
  families.Histogram("kvcache_request_seconds", "From a request to its end", now.request);
}

void AddTokens(const ServiceCounters& now, Families& families) {
  families.Counter("kvcache_generated_tokens_total", "Tokens of answers", now.generated_tokens);
  families.Counter("kvcache_evaluated_tokens_total",
                   "Tokens that passes evaluated: of prompts, answers and drafts",
                   now.evaluated_tokens);
  families.Counter("kvcache_prompt_tokens_computed_total",
                   "Tokens of prompts that passes evaluated", now.computed_tokens);
  families.Begin("kvcache_prompt_tokens_reused_total",
                 "Tokens of prompts that were not computed, by the tier that had them",
                 MetricType::Counter);
  std::int64_t live = now.reused_tokens;
  for (std::size_t i = 0; i < now.reused_by_tier.size(); ++i) {
    live -= now.reused_by_tier[i];
    families.Add(static_cast<double>(now.reused_by_tier[i]), "tier",
                 std::string(StoreTierName(static_cast<StoreTier>(i))));
  }
  families.Add(static_cast<double>(live), "tier", "live");
  families.Begin("kvcache_prompt_tokens_missed_total",
                 "Why tokens of prompts were not in the live cache", MetricType::Counter);
  for (std::size_t i = 0; i < now.missed_tokens.size(); ++i) {
    families.Add(static_cast<double>(now.missed_tokens[i]), "reason",
                 std::string(MissReasonName(static_cast<MissReason>(i))));
  }
}

void AddMemory(const ServiceCounters& now, const ServerContext& context, Families& families) {
  families.Gauge("kvcache_prefix_tokens", "Tokens of prefixes in the live caches",
                 now.prefix_tokens);
  families.Gauge("kvcache_prefix_states", "Lengths to which prefixes can be restored",
                 now.prefix_states);
  families.Counter("kvcache_prefix_tokens_evicted_total",
                   "Tokens of prefixes that had to make room", now.evicted_tokens);
  families.Gauge("kvcache_models_loaded", "Models that are loaded",
                 std::ssize(context.host.Loaded()));
  families.Begin("kvcache_held_bytes", "Bytes of keys, values and states, by tier",
                 MetricType::Gauge);
  families.Add(static_cast<double>(now.held_bytes), "tier", "live");
  const std::vector<TierBytes> tiers = context.tiers.Last();
  for (const TierBytes& tier : tiers) {
    families.Add(static_cast<double>(tier.held), "tier", std::string(StoreTierName(tier.tier)));
  }
  if (tiers.empty()) return;
  families.Begin("kvcache_store_evicted_total", "Objects of stores that had to make room, by tier",
                 MetricType::Counter);
  for (const TierBytes& tier : tiers) {
    families.Add(static_cast<double>(tier.evicted), "tier", std::string(StoreTierName(tier.tier)));
  }
}

}  // namespace

void Metrics(const ServerContext& context) {
  const ServiceCounters now = context.host.counters();
  Families families;
  AddRequests(now, families);
  AddTokens(now, families);
  AddMemory(now, context, families);
  context.reply->Send(200, families.Text(), {{"Content-Type", "text/plain; version=0.0.4"}});
}

}  // namespace kvcache::server::operate
