// What the page reads: /state has the prefixes, sequences and last requests of the user who asks, and
// /state/prefix a part of one prefix.
#include "server/api/routes.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/parse_number.h"
#include "server/api/operator/shown.h"
#include "server/api/page/assets.h"
#include "server/api/page/prefix_rows.h"
#include "server/http/url_text.h"
#include "server/output/stamps.h"

namespace kvcache::server::page {
namespace {

constexpr std::size_t kMaxRows = 256;
constexpr std::size_t kMaxNodes = 16384;   // that are looked at for them
constexpr std::size_t kMaxRequests = 64;   // that run, and that have ended
constexpr Position kMaxTextTokens = 4096;  // of one answer of /state/prefix

std::string TextOf(const TextService& service, const std::vector<PrefixKey>& keys) {
  std::string text;
  for (const PrefixKey key : keys) text += service.Piece(static_cast<std::int32_t>(key));
  return text;
}

Json RowsJson(const TextService& service, const std::vector<PrefixRow>& rows) {
  Json list = Json::array();
  for (const PrefixRow& row : rows) {
    std::string text = TextOf(service, row.first);
    if (!row.last.empty()) text += " \xe2\x80\xa6 " + TextOf(service, row.last);
    Json parts = Json::array();
    for (const PrefixRow::Part& part : row.parts) {
      parts.push_back({{"end", part.end}, {"state", part.has_state}});
    }
    list.push_back({{"id", row.number},
                    {"parent", row.parent},
                    {"begin", row.begin},
                    {"end", row.end},
                    {"state", row.parts.back().has_state},
                    {"parts", std::move(parts)},
                    {"requests", row.requests},
                    {"pinned", row.pinned},
                    {"whole", row.last.empty()},
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

// Milliseconds, in hundredths.
Json Milliseconds(double seconds) {
  return seconds < 0 ? Json() : Json(std::round(seconds * 100000.0) / 100.0);
}

// Texts of the request, and errors that may quote it, are shown to its user only.
Json RequestJson(const RequestRecord& record, const User& user) {
  const bool own = record.salt == user.salt;
  const std::string line = record.difference.line();
  Json json = {{"id", record.number},
               {"time_ms", record.unix_ms},
               {"route", record.route},
               {"model", record.model},
               {"user", record.user},
               {"state", RequestPhaseName(record.phase)},
               {"prompt_tokens", record.has_prompt ? Json(record.reuse.prompt) : Json()},
               {"cached_tokens", record.has_prompt ? Json(record.reuse.restored) : Json()},
               {"tiers", TiersJson(record.reuse)},
               {"missed", operate::MissedJson(record.reuse.missed)},
               {"differs_at", own ? Json(line) : Json()},
               {"difference", nullptr},
               {"parked", record.reuse.parked},
               {"generated_tokens", record.generated},
               {"first_token_ms", Milliseconds(record.first_token_seconds)},
               {"total_ms", Milliseconds(record.seconds)},
               {"status", record.status},
               {"end", nullptr},
               {"error", own ? Json(record.error) : Json()}};
  if (record.phase == RequestPhase::kDone) json["end"] = StopReasonName(record.stop);
  if (!own || record.reuse.difference.position < 0 || line.empty()) return json;
  json["difference"] = {{"token", record.reuse.difference.position},
                        {"before", record.difference.before},
                        {"prompt", record.difference.prompt},
                        {"after", record.difference.after},
                        {"cached", record.difference.cached}};
  return json;
}

void AddRequests(const ServerContext& context, Json& state) {
  state["running"] = state["ended"] = Json::array();
  for (const RequestRecord& record : context.requests.Last(context.user, kMaxRequests)) {
    state[record.running() ? "running" : "ended"].push_back(RequestJson(record, context.user));
  }
}

// What concerns all users is for administrators.
void AddTotals(const ServerContext& context, const std::vector<LoadedModel>& models, Json& state) {
  const ServiceCounters counters = context.host.counters();
  state["totals"] = {{"requests", counters.requests},
                     {"running", counters.running},
                     {"waiting", counters.waiting},
                     {"parked", counters.parked},
                     {"generated_tokens", counters.generated_tokens},
                     {"reused_tokens", counters.reused_tokens},
                     {"computed_tokens", counters.computed_tokens},
                     {"prefix_tokens", counters.prefix_tokens},
                     {"prefix_states", counters.prefix_states},
                     {"evicted_tokens", counters.evicted_tokens},
                     {"held_bytes", counters.held_bytes}};
  Json& memory = state["memory"] = Json::array();
  for (const LoadedModel& loaded : models) {
    const ServiceCounters of_model = loaded.service->counters();
    memory.push_back({{"tier", "live"},
                      {"model", loaded.model.name},
                      {"held_bytes", of_model.held_bytes},
                      {"budget_bytes", of_model.budget_bytes},
                      {"evicted_tokens", of_model.evicted_tokens}});
  }
  Json& tiers = state["tier_bytes"] = {{"live", counters.held_bytes}};
  for (const TierBytes& tier : context.tiers.Last()) {
    tiers[StoreTierName(tier.tier)] = tier.held;
    memory.push_back({{"tier", StoreTierName(tier.tier)},
                      {"held_bytes", tier.held},
                      {"budget_bytes", tier.budget},
                      {"evicted_objects", tier.evicted}});
  }
}

// The state without what only the engine's thread may look at.
Json StateJson(const ServerContext& context, const std::vector<LoadedModel>& models,
               const LoadedModel* shown) {
  Json names = Json::array();
  for (const LoadedModel& loaded : models) {
    if (loaded.lease != nullptr) names.push_back(loaded.model.name);  // others have no prefixes
  }
  Json state = {{"model", shown == nullptr ? Json() : Json(shown->model.name)},
                {"models", std::move(names)},
                {"time_ms", UnixSeconds() * 1000},
                {"seconds", 0},
                {"context", 0},
                {"max_sequences", 0},
                {"nodes", Json::array()},
                {"all_nodes", true},
                {"sequences", Json::array()}};
  AddRequests(context, state);
  if (context.user.is_admin) AddTotals(context, models, state);
  return state;
}

// REQUIRES: the engine's thread.
void AddCache(const ServerContext& context, const TextService& service, const Scheduler& scheduler,
              std::int64_t free_cells, Json& state) {
  PrefixRows rows({.rows = kMaxRows, .nodes = kMaxNodes});
  scheduler.prefixes().Visit(context.user.salt,
                             [&](const PrefixNodeView& node) { return rows.Add(node); });
  const EngineOptions& options = service.engine().options();
  state["seconds"] = scheduler.Now();
  state["context"] = options.context;
  state["max_sequences"] = options.max_sequences;
  state["nodes"] = RowsJson(service, rows.rows());
  state["all_nodes"] = rows.all();
  state["sequences"] = operate::SequencesJson(scheduler, context.user);
  if (context.user.is_admin) state["totals"]["free_cells"] = free_cells;
}

// Returns the model of that name; without a name, the one that was asked for last. Null: it is not loaded.
const LoadedModel* Shown(const std::vector<LoadedModel>& models,
                         const std::optional<std::string>& name) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const LoadedModel& loaded) {
    return loaded.lease != nullptr && (!name || loaded.model.name == *name);
  });
  return found == models.end() ? nullptr : &*found;
}

// Returns a number of the query. None: it is missing, or not a number that is at least 0.
template <typename Number>
std::optional<Number> QueryNumber(const std::string& query, std::string_view name) {
  const auto number = ParseNumber<Number>(QueryField(query, name).value_or(""));
  return number && *number >= 0 ? number : std::nullopt;
}

// No lease but that of the shown model waits for the engine's thread.
void ShowState(const ServerContext& context) {
  const std::vector<LoadedModel> models = context.host.Loaded();
  const LoadedModel* const shown = Shown(models, QueryField(context.query, "model"));
  const auto state = std::make_shared<Json>(StateJson(context, models, shown));
  if (shown == nullptr) return context.Send(*state);
  shown->lease->View(
      [context, state, lease = shown->lease](const Scheduler& scheduler, std::int64_t free_cells) {
        AddCache(context, *lease, scheduler, free_cells, *state);
        context.Send(*state);
      });
}

// A row that is not there any more has no text.
void ShowPrefix(const ServerContext& context) {
  const auto number = QueryNumber<std::uint64_t>(context.query, "node");
  const auto from = QueryNumber<Position>(context.query, "from");
  if (!number || !from) {
    return context.Refuse({.message = "'node' and 'from' must be numbers that are at least 0",
                           .param = number ? "from" : "node"});
  }
  const std::vector<LoadedModel> models = context.host.Loaded();
  const LoadedModel* const shown = Shown(models, QueryField(context.query, "model"));
  if (shown == nullptr) {
    return context.Refuse({.status = 404, .message = "the model is not loaded", .param = "model"});
  }
  shown->lease->View([context, lease = shown->lease, number = *number, from = *from](
                         const Scheduler& scheduler, std::int64_t /*free_cells*/) {
    const RowKeys row =
        KeysOfRow(scheduler.prefixes(), context.user.salt, number, from, kMaxTextTokens);
    context.Send({{"length", row.length},
                  {"from", from},
                  {"end", from + std::ssize(row.keys)},
                  {"text", TextOf(*lease, row.keys)}});
  });
}

}  // namespace

std::vector<Route> Routes() {
  std::vector<Route> routes = FileRoutes();
  routes.push_back({"GET", "/state", AtOnce{ShowState}});
  routes.push_back({"GET", "/state/prefix", AtOnce{ShowPrefix}});
  return routes;
}

}  // namespace kvcache::server::page
