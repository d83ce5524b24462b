#include "server/api/operator/shown.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "server/api/operator/metrics.h"
#include "server/api/routes.h"
#include "server/models/prompt_line.h"
#include "server/request/messages.h"
#include "server/request/model_defaults.h"
#include "server/request/template_fields.h"
#include "server/request/tools.h"

namespace kvcache::server::operate {
namespace {

// Reads a conversation with its tools, and what it says to the template.
Result<ChatInput> ReadChat(const RouteContext& context, Fields& fields) {
  ChatInput input;
  input.tools = ReadOpenAiTools(fields, context.service.dialect()).list;
  ReadThink(fields, context.service.reasons(), input);
  ReadTemplateFields(fields, input);
  if (!fields.ok()) return fields.error();
  KVCACHE_ASSIGN_OR_RETURN(input.messages, ReadMessages(*fields.Find("messages")));
  return input;
}

// Returns the tokens of "messages" or "prompt", as the routes that generate have them.
Result<Prompt> ReadPrompt(const RouteContext& context, Fields& fields) {
  if (fields.Has("messages") == fields.Has("prompt")) {
    return InvalidArgument("needs either 'messages' or 'prompt'");
  }
  if (fields.Has("messages")) {
    KVCACHE_ASSIGN_OR_RETURN(ChatInput input, ReadChat(context, fields));
    return RenderChat(context, std::move(input));
  }
  const std::string prompt = fields.Text("prompt");
  if (!fields.ok()) return fields.error();
  return context.service.Encode(prompt);
}

Json ProbeJson(const Engine& engine, const std::vector<std::int32_t>& tokens,
               const PrefixMatch& match) {
  Json json = {{"prompt_tokens", tokens.size()},
               {"matched_tokens", match.matched},
               {"cached_tokens", match.resumed},
               {"missed", MissedJson(match.missed)},
               {"difference", nullptr}};
  if (match.difference.position >= 0) {
    json["difference"] = {{"token", match.difference.position},
                          {"line", LineAt(engine, tokens, match.difference).line()}};
  }
  return json;
}

Json Pieces(const TextService& service, const std::vector<std::int32_t>& tokens) {
  Json pieces = Json::array();
  for (const std::int32_t token : tokens) pieces.push_back(service.Piece(token));
  return pieces;
}

struct AskedText {
  std::string content;
  bool has_special = false;
  bool has_pieces = false;
};

AskedText ReadAskedText(Fields& fields) {
  AskedText asked{.content = fields.Text("content"),
                  .has_special = fields.Bool("add_special", false),
                  .has_pieces = fields.Bool("with_pieces", false)};
  if (!fields.Has("content")) fields.Fail("content", "is missing");
  return asked;
}

// `speller` has the pieces of tokens.
template <typename Speller>
void SendTokens(const ServerContext& context, const Result<std::vector<std::int32_t>>& tokens,
                bool has_pieces, const Speller& speller) {
  if (!tokens.ok()) return context.Refuse(tokens.status());
  Json list = Json::array();
  for (const std::int32_t token : *tokens) {
    if (has_pieces) {
      list.push_back({{"id", token}, {"piece", speller.Piece(token)}});
    } else {
      list.push_back(token);
    }
  }
  context.Send({{"tokens", std::move(list)}});
}

void Tokenize(const RouteContext& context, const Json& body) {
  Fields fields(body);
  const AskedText asked = ReadAskedText(fields);
  if (!fields.ok()) return context.Refuse(fields);
  const TextPlace place = asked.has_special ? TextPlace::kBeginning : TextPlace::kContinuation;
  SendTokens(context, context.service.engine().Tokenize(asked.content, place), asked.has_pieces,
             context.service);
}

void TokenizeInput(const EmbeddingContext& context, const Json& body) {
  Fields fields(body);
  const AskedText asked = ReadAskedText(fields);
  if (!fields.ok()) return context.Refuse(fields);
  const Embedder& embedder = context.service.embedder();
  SendTokens(context, embedder.Tokenize(asked.content, asked.has_special), asked.has_pieces,
             embedder);
}

std::vector<std::int32_t> ReadTokens(Fields& fields) {
  std::vector<std::int32_t> tokens;
  const Json* const given = fields.Find("tokens");
  if (given == nullptr || !given->is_array()) fields.Fail("tokens", "must be an array of integers");
  for (std::size_t i = 0; fields.ok() && i < given->size(); ++i) {
    const std::int64_t token = IntegerOf((*given)[i]).value_or(-1);
    const bool fits = token >= 0 && token <= INT32_MAX;
    if (!fits) fields.Fail(StrCat("tokens[", i, "]"), "is not a token");
    if (fits) tokens.push_back(static_cast<std::int32_t>(token));
  }
  return tokens;
}

// `speller` has the text of tokens.
template <typename Speller>
void SendText(const ServerContext& context, const Json& body, const Speller& speller) {
  Fields fields(body);
  const std::vector<std::int32_t> tokens = ReadTokens(fields);
  if (!fields.ok()) return context.Refuse(fields);
  const auto text = speller.Detokenize(tokens);
  if (!text.ok()) return context.Refuse(text.status());
  context.Send({{"content", *text}});
}

void Detokenize(const RouteContext& context, const Json& body) {
  SendText(context, body, context.service.engine());
}

void DetokenizeInput(const EmbeddingContext& context, const Json& body) {
  SendText(context, body, context.service.embedder());
}

void ApplyTemplate(const RouteContext& context, const Json& body) {
  Fields fields(body);
  if (!fields.Has("messages")) fields.Fail("messages", "is missing");
  auto input = fields.ok() ? ReadChat(context, fields) : fields.error();
  if (!fields.ok()) return context.Refuse(fields);
  if (input.ok()) AddStoredMessages(context.model, *input);
  auto text = input.ok() ? context.service.RenderText(std::move(*input)) : input.status();
  if (!text.ok()) return context.Refuse(text.status());
  context.Send({{"prompt", *text}});
}

void Probe(const RouteContext& context, const Json& body) {
  Fields fields(body);
  const bool pieces = fields.Bool("with_pieces", false);
  auto prompt = ReadPrompt(context, fields);
  if (!fields.ok()) return context.Refuse(fields);
  if (!prompt.ok()) return context.Refuse(prompt.status());
  if (prompt->tokens.empty()) return context.Refuse(InvalidArgument("the prompt is empty"));
  context.service.Probe(prompt->tokens, context.salt(),
                        [context, pieces, tokens = prompt->tokens](auto match) {
                          if (!match.ok()) return context.Refuse(match.status());
                          Json json = ProbeJson(context.service.engine(), tokens, *match);
                          if (pieces) json["pieces"] = Pieces(context.service, tokens);
                          const VolatileCounts& lines = context.volatile_lines;
                          if (lines.removed > 0) json["removed_lines"] = lines.removed;
                          if (lines.moved > 0) json["moved_lines"] = lines.moved;
                          context.Send(json);
                        });
}

// Shows the sequences of the model that was asked for last.
void Slots(const ServerContext& context) {
  const std::vector<LoadedModel> loaded = context.host.LoadedToGenerate();
  if (loaded.empty()) return context.Send({{"model", nullptr}, {"sequences", Json::array()}});
  const LoadedModel& last = loaded.front();
  last.lease->View([context, name = last.model.name, lease = last.lease](const Scheduler& scheduler,
                                                                         std::int64_t free_cells) {
    const Engine& engine = lease->engine();
    Json slots = {{"model", name},
                  {"sequences", SequencesJson(scheduler, context.user)},
                  {"max_sequences", engine.options().max_sequences},
                  {"context", engine.context()}};
    if (context.user.is_admin) {  // these count all users' tokens
      slots["free_cells"] = free_cells;
      slots["prefix_tokens"] = scheduler.prefixes().Stats().tokens;
    }
    context.Send(slots);
  });
}

void Health(const ServerContext& context) {
  context.Send({{"status", "ok"}});
}

}  // namespace

Json SequencesJson(const Scheduler& scheduler, const User& user) {
  Json list = Json::array();
  for (const RequestState& state : scheduler.Requests()) {
    if (!user.is_admin && state.salt != user.salt) continue;
    const bool live = state.sequence >= 0;
    const char* const idle = state.parked ? "parked" : "waiting";
    const char* const name = !live ? idle : state.in_prompt ? "prompt" : "generating";
    list.push_back({{"request", static_cast<std::uint64_t>(state.id)},
                    {"sequence", live ? Json(state.sequence) : Json()},
                    {"state", name},
                    {"prompt_tokens", state.prompt},
                    {"cached_tokens", state.restored},
                    {"generated_tokens", state.generated},
                    {"cells", state.evaluated}});
  }
  return list;
}

Json MissedJson(std::span<const PrefixMiss> missed) {
  Json list = Json::array();
  for (const PrefixMiss& miss : missed) {
    list.push_back({{"tokens", miss.tokens}, {"reason", MissReasonName(miss.reason)}});
  }
  return list;
}

std::vector<Route> Routes() {
  return {
      {"GET", "/health", AtOnce{Health}, Audience::kEveryone},
      {"GET", "/v1/health", AtOnce{Health}, Audience::kEveryone},
      {"GET", "/metrics", AtOnce{Metrics}, Audience::kAdministrators},
      {"GET", "/slots", AtOnce{Slots}},
      {"POST", "/tokenize", WithModel{.run = Tokenize, .with_embedder = TokenizeInput}},
      {"POST", "/detokenize", WithModel{.run = Detokenize, .with_embedder = DetokenizeInput}},
      {"POST", "/apply-template", WithModel{ApplyTemplate}},
      {"POST", "/probe", WithModel{Probe}},
  };
}

}  // namespace kvcache::server::operate
