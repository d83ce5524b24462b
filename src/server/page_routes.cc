// The page that shows the cache, and what it reads: /state has the prefixes, sequences and last requests of
// the user who asks.
#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/answer.h"
#include "server/page_files.h"

namespace kvcache::server {
namespace {

using Reply = std::shared_ptr<HttpReply>;

constexpr std::size_t kMostNodes = 256;
constexpr std::size_t kMostKeys = 40;  // of a node's text, at each end

struct NodeCopy {
  PrefixNodeView view{};
  std::vector<std::int32_t> first{}, last{};
};

std::vector<std::int32_t> Tokens(std::span<const PrefixKey> keys) {
  std::vector<std::int32_t> tokens;
  for (const PrefixKey key : keys) tokens.push_back(static_cast<std::int32_t>(key));
  return tokens;
}

std::string TextOf(const TextService& service, const std::vector<std::int32_t>& tokens) {
  std::string text;
  for (const std::int32_t token : tokens) text += service.Piece(token);
  return text;
}

Json NodesJson(const TextService& service, const std::vector<NodeCopy>& nodes) {
  Json list = Json::array();
  for (const NodeCopy& node : nodes) {
    const PrefixNodeView& view = node.view;
    std::string text = TextOf(service, node.first);
    if (!node.last.empty()) text += " \xe2\x80\xa6 " + TextOf(service, node.last);
    list.push_back({{"id", view.number},
                    {"parent", view.parent},
                    {"begin", view.begin},
                    {"end", view.end},
                    {"state", view.has_state},
                    {"requests", view.live},
                    {"pinned", view.pinned},
                    {"text", std::move(text)}});
  }
  return list;
}

// What was live in the cache, and what came from each tier of the store.
Json TiersJson(const ReuseReport& reuse) {
  Json tiers = {{"live", reuse.restored - reuse.stored}};
  for (std::size_t i = 0; i < reuse.tiers.size(); ++i) {
    tiers[StoreTierName(static_cast<StoreTier>(i))] = reuse.tiers[i];
  }
  return tiers;
}

// A line of the prompt is shown to its user only.
Json EndedJson(const EndedRequest& request, const User& user) {
  Json missed = Json::array();
  for (const PrefixMiss& miss : request.reuse.missed) {
    missed.push_back({{"tokens", miss.tokens}, {"reason", MissReasonName(miss.reason)}});
  }
  return {{"seconds", request.seconds},
          {"prompt_tokens", request.reuse.prompt},
          {"cached_tokens", request.reuse.restored},
          {"tiers", TiersJson(request.reuse)},
          {"missed", std::move(missed)},
          {"differs_at", request.salt == user.salt ? Json(request.differs_at) : Json()},
          {"generated_tokens", request.generated},
          {"first_token_ms", request.first_token_ms},
          {"total_ms", request.total_ms}};
}

// Texts of prefixes are those of the user. Numbers that count other users' tokens are for administrators.
Json StateJson(const ServerContext& context, const LoadedModel& loaded, const Scheduler& scheduler,
               std::int64_t free_cells) {
  const TextService& service = *loaded.lease;
  std::vector<NodeCopy> nodes;
  bool all = true;
  scheduler.prefixes().Visit(context.user.salt, [&](const PrefixNodeView& view) {
    if (nodes.size() == kMostNodes) return all = false;
    const bool whole = view.keys.size() <= 2 * kMostKeys;
    nodes.push_back(
        {.view = view,
         .first = Tokens(whole ? view.keys : view.keys.first(kMostKeys)),
         .last = whole ? std::vector<std::int32_t>() : Tokens(view.keys.last(kMostKeys))});
    nodes.back().view.keys = {};  // they are valid in this call only
    return true;
  });
  Json ended = Json::array();
  for (const EndedRequest& request : service.ended()) {
    if (context.user.is_admin || request.salt == context.user.salt) {
      ended.push_back(EndedJson(request, context.user));
    }
  }
  const EngineOptions& options = service.engine().options();
  Json state = {{"model", loaded.model.name},
                {"seconds", scheduler.Now()},
                {"context", options.context},
                {"most_sequences", options.max_sequences},
                {"nodes", NodesJson(service, nodes)},
                {"all_nodes", all},
                {"sequences", SequencesJson(scheduler, context.user)},
                {"ended", std::move(ended)}};
  if (!context.user.is_admin) return state;
  Json& tiers = state["tier_bytes"] = Json::object();
  const SchedulerStats stats = scheduler.Stats();
  const PrefixStats prefixes = scheduler.prefixes().Stats();
  const ServiceCounters counters = context.host.counters();
  tiers["live"] = counters.held_bytes;
  for (const TierBytes& tier : context.tiers.Last()) tiers[StoreTierName(tier.tier)] = tier.held;
  state["totals"] = {{"requests", counters.requests},
                     {"running", counters.running},
                     {"generated_tokens", counters.generated_tokens},
                     {"reused_tokens", counters.reused_tokens},
                     {"computed_tokens", counters.computed_tokens},
                     {"held_bytes", stats.held_bytes},
                     {"free_cells", free_cells},
                     {"prefix_tokens", prefixes.tokens},
                     {"prefix_states", prefixes.states},
                     {"evicted_tokens", prefixes.evicted_tokens}};
  return state;
}

void SendFile(HttpReply& reply, std::string_view text, const char* type) {
  reply.Send(
      200, std::string(text),
      {{"Content-Type", type},
       {"Cache-Control", "no-cache"},
       {"X-Content-Type-Options", "nosniff"},
       {"Referrer-Policy", "no-referrer"},
       {"Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
}

}  // namespace

void PageIndex(const ServerContext& /*context*/, const Reply& reply) {
  SendFile(*reply, kPageIndexHtml, "text/html; charset=utf-8");
}
void PageStyle(const ServerContext& /*context*/, const Reply& reply) {
  SendFile(*reply, kPageStyleCss, "text/css; charset=utf-8");
}
void PageScript(const ServerContext& /*context*/, const Reply& reply) {
  SendFile(*reply, kPageScriptJs, "text/javascript; charset=utf-8");
}

// Shows the model that was asked for last.
void PageState(const ServerContext& context, const Reply& reply) {
  const std::vector<LoadedModel> models = context.host.Loaded();
  if (models.empty()) {
    return SendJson(*reply, {{"model", nullptr},
                             {"seconds", 0},
                             {"context", 0},
                             {"most_sequences", 0},
                             {"nodes", Json::array()},
                             {"all_nodes", true},
                             {"sequences", Json::array()},
                             {"ended", Json::array()}});
  }
  const LoadedModel& last = models.front();
  last.lease->Look([context, last, reply](const Scheduler& scheduler, std::int64_t free_cells) {
    SendJson(*reply, StateJson(context, last, scheduler, free_cells));
  });
}

}  // namespace kvcache::server
