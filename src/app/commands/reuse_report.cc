#include "app/commands/reuse_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/strings.h"

namespace kvcache::app {
namespace {

std::string Decimals(double value, int decimals) {
  char text[64];
  (void)std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

std::string Row(std::string_view name, std::int64_t tokens, std::int64_t of) {
  char text[160];
  const double share = of > 0 ? 100.0 * static_cast<double>(tokens) / static_cast<double>(of) : 0.0;
  (void)std::snprintf(text, sizeof(text), "  %-36.*s %15s  %6.2f%%\n",
                      static_cast<int>(name.size()), name.data(), WithThousands(tokens).c_str(),
                      share);
  return text;
}

double Percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

nlohmann::json TimesJson(const ReuseSummary& summary) {
  const std::vector<double>& times = summary.replay.first_token_ms;
  if (!summary.has_model || times.empty()) return {{"p50", nullptr}, {"p99", nullptr}};
  return {{"p50", Percentile(times, 0.5)}, {"p99", Percentile(times, 0.99)}};
}

std::string Counted(std::int64_t count, std::string_view noun) {
  return StrCat(WithThousands(count), " ", noun, count == 1 ? "" : "s");
}

std::string Heading(const Trace& trace, const ReuseSummary& summary) {
  return StrCat(Counted(std::ssize(trace.requests), "request"), " · ",
                Counted(trace.PromptTokens(), "prompt token"), " · blocks of ", trace.block_size,
                " · ", Counted(summary.slots, "slot"), " · ",
                summary.bounded ? StrCat("budget ", Counted(summary.budget_tokens, "token"))
                                : std::string("no budget"),
                "\n");
}

}  // namespace

std::string ReuseText(const Trace& trace, const ReuseSummary& summary) {
  const ReplayReport& replay = summary.replay;
  const ReuseBaselines& baselines = summary.baselines;
  const std::int64_t prompts = replay.prompt_tokens;
  std::string text = Heading(trace, summary) + "\nprompt tokens reused by\n";
  text += Row("no cache", 0, prompts);
  text += Row(StrCat("the last prompt of ", Counted(summary.slots, "slot")), baselines.last_prompts,
              prompts);
  if (summary.bounded) {
    text += Row("least recently used blocks", baselines.least_recently_used, prompts);
  }
  text += Row("kvcache", replay.reused_tokens, prompts);
  if (summary.bounded) text += Row("the optimum, knowing the future", baselines.optimum, prompts);
  text += Row("an unlimited cache of blocks", baselines.unlimited, prompts);
  text += "\nprompt tokens computed, and why\n";
  for (const ReplayMiss& miss : replay.missed) text += Row(miss.reason, miss.tokens, prompts);
  text += StrCat("\nmost tokens held ", WithThousands(replay.peak_tokens), " · evicted ",
                 WithThousands(replay.evicted_tokens), " · prefixes take ",
                 HumanBytes(replay.prefixes.bytes), " · ", Decimals(summary.seconds, 1), " s\n");
  if (replay.too_large > 0) {
    text += StrCat(Counted(replay.too_large, "request"),
                   " larger than the budget: computed, and nothing of them kept\n");
  }
  if (summary.has_model && !replay.first_token_ms.empty()) {
    text += StrCat("first token after ", Decimals(Percentile(replay.first_token_ms, 0.5), 1),
                   " ms (median), ", Decimals(Percentile(replay.first_token_ms, 0.99), 1),
                   " ms (99%) · most bytes held ", HumanBytes(replay.peak_bytes), "\n");
  }
  return text;
}

nlohmann::json ReuseJson(const Trace& trace, const ReuseSummary& summary) {
  const ReplayReport& replay = summary.replay;
  nlohmann::json missed = nlohmann::json::array();
  for (const ReplayMiss& miss : replay.missed) {
    missed.push_back({{"tokens", miss.tokens}, {"reason", miss.reason}});
  }
  nlohmann::json baselines = {{"last_prompt_per_slot", summary.baselines.last_prompts},
                              {"least_recently_used", nullptr},
                              {"optimum", nullptr}};
  if (summary.bounded) {
    baselines["least_recently_used"] = summary.baselines.least_recently_used;
    baselines["optimum"] = summary.baselines.optimum;
  }
  return {{"requests", trace.requests.size()},
          {"prompt_tokens", replay.prompt_tokens},
          {"reused_tokens", replay.reused_tokens},
          {"computed_tokens", replay.prompt_tokens - replay.reused_tokens},
          {"unlimited_reused_tokens", summary.baselines.unlimited},
          {"max_recomputed_tokens", replay.max_recomputed},
          {"evicted_tokens", replay.evicted_tokens},
          {"peak_tokens", replay.peak_tokens},
          {"peak_bytes", replay.peak_bytes},
          {"missed", std::move(missed)},
          {"ttft_ms", TimesJson(summary)},
          {"baselines", std::move(baselines)}};
}

}  // namespace kvcache::app
