#include "app/chat/answer_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/commands/json_report.h"
#include "base/strings.h"

namespace kvcache::app {
namespace {

nlohmann::json SpeculationJson(const SpeculationReport& drafts) {
  nlohmann::json json = {{"drafted", drafts.drafted},
                         {"accepted", drafts.accepted},
                         {"rounds", drafts.rounds},
                         {"mean_committed", drafts.MeanCommitted()}};
  if (!drafts.error.ok()) json["error"] = std::string(drafts.error.message());
  return json;
}

nlohmann::json CallsJson(const std::vector<ChatCall>& calls) {
  nlohmann::json json = nlohmann::json::array();
  for (const ChatCall& call : calls) {
    json.push_back({{"id", call.id},
                    {"name", call.name},
                    {"arguments", nlohmann::json::parse(call.arguments, nullptr, false)}});
  }
  return json;
}

nlohmann::json ReuseJson(const ChatTurn& turn) {
  const GenerateResult& result = turn.result;
  nlohmann::json reuse = PromptTokensJson(result.computed_tokens);
  const ReuseReport& use = result.reuse;
  reuse["matched"] = std::max(use.restored, use.matched);
  reuse["restored"] = use.restored;
  reuse["tiers"]["live"] = use.restored - use.stored;
  for (int i = 0; i < kStoreTiers; ++i) {
    const std::string name(StoreTierName(static_cast<StoreTier>(i)));
    reuse["tiers"][name] = use.tiers[static_cast<std::size_t>(i)];
  }
  for (const PrefixMiss& miss : use.missed) {
    const bool was_known =
        miss.reason == MissReason::kEvicted || miss.reason == MissReason::kNoState ||
        miss.reason == MissReason::kRestoreFailed || miss.reason == MissReason::kOtherPicture ||
        miss.reason == MissReason::kPartOfPicture;
    if (!was_known) continue;
    reuse["missed"].push_back(
        {{"tokens", miss.tokens}, {"reason", std::string(MissReasonName(miss.reason))}});
  }
  if (use.pictures > 0) {
    reuse["pictures"] = use.pictures;
    reuse["tower_runs"] = use.tower_runs;
  }
  if (!use.store_problem.empty()) reuse["store_problem"] = use.store_problem;
  if (use.difference.position >= 0) {
    reuse["differs"] = {{"position", use.difference.position},
                        {"cached", use.difference.cached},
                        {"prompt", use.difference.prompt}};
  }
  if (turn.dropped > 0) {
    reuse["missed"].push_back(
        {{"tokens", turn.dropped}, {"reason", std::string(RewriteText(turn.rewrite))}});
  }
  return reuse;
}

}  // namespace

nlohmann::json AnswerJson(Engine& engine, const RunFlags& flags, const ChatTurn& turn,
                          double load_ms) {
  const GenerateResult& result = turn.result;
  nlohmann::json json = {{"text", result.text},
                         {"tokens", result.tokens},
                         {"prompt_tokens", result.prompt_tokens},
                         {"stop", StopReasonName(result.stop)},
                         {"seed", flags.sampling.seed},
                         {"shifts", result.shifts},
                         {"reuse", ReuseJson(turn)},
                         {"timing",
                          {{"load_ms", load_ms},
                           {"restore_ms", result.reuse.store_ms},
                           {"ttft_ms", result.first_token_ms},
                           {"prefill_tokens_per_s", result.PrefillTokensPerSecond()},
                           {"decode_tokens_per_s", result.DecodeTokensPerSecond()}}},
                         {"speculation", SpeculationJson(result.speculation)},
                         {"memory", MemoryJson(engine)}};
  if (!turn.thoughts.empty()) json["thoughts"] = turn.thoughts;
  if (!turn.calls.empty()) json["calls"] = CallsJson(turn.calls);
  return json;
}

std::string AnswerSummary(const ChatTurn& turn) {
  const GenerateResult& result = turn.result;
  const ReuseReport& use = result.reuse;
  std::string text = StrCat("prompt ", WithThousands(result.prompt_tokens), " tokens: ");
  if (const auto live = use.restored - use.stored; live > 0) {
    text += StrCat(WithThousands(live), " kept, ");
  }
  for (int i = 0; i < kStoreTiers; ++i) {
    const std::int32_t tokens = use.tiers[static_cast<std::size_t>(i)];
    if (tokens == 0) continue;
    const auto tier = static_cast<StoreTier>(i);
    text += StrCat(WithThousands(tokens), " from ",
                   tier == StoreTier::kRemote ? "the remote store" : StoreTierName(tier), ", ");
  }
  text += StrCat(WithThousands(result.computed_tokens), " computed");
  if (turn.dropped > 0) {
    text += StrCat(" (", RewriteText(turn.rewrite), ": ", WithThousands(turn.dropped),
                   " tokens in the cache not used)");
  }
  if (result.computed_tokens < result.prompt_tokens - use.restored)
    return text;  // interrupted before the first token
  char rates[96];
  (void)std::snprintf(rates, sizeof(rates), " · first token %.0f ms · %.0f tokens/s",
                      result.first_token_ms, result.DecodeTokensPerSecond());
  text += rates;
  if (const SpeculationReport& drafts = result.speculation; drafts.rounds > 0) {
    text += StrCat(" · ", WithThousands(drafts.accepted), " of ", WithThousands(drafts.drafted),
                   " drafts accepted");
  }
  if (!use.store_problem.empty()) {
    text += StrCat(" · not taken from the store: ", use.store_problem);
  }
  if (const Status& error = result.speculation.error; !error.ok()) {
    text += StrCat(" · drafts ended: ", error.message());
  }
  return text;
}

}  // namespace kvcache::app
