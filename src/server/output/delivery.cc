#include "server/output/delivery.h"

#include <cmath>
#include <utility>

#include "base/strings.h"
#include "dialect/answer_parser.h"
#include "server/log.h"

namespace kvcache::server {
namespace {

// The choices of one answer on their way to a client.
struct Choices {
  ModelLease lease;
  std::shared_ptr<HttpReply> reply;
  std::shared_ptr<RequestEntry> entry;
  Api api{};
  bool stream = false;
  bool begun = false;
  bool failed = false;
  std::size_t left = 0;  // that have not ended
  TextResult total{};
  std::vector<Json> wholes{};  // of the choices

  void Fail(const Status& status, AnswerShape& shape) {
    if (std::exchange(failed, true)) return;
    if (!begun) return SendError(*reply, api, FromStatus(status));
    entry->Fail(status.message());
    std::string last = shape.Failure(FromStatus(status));
    reply->Write(last.empty() ? ErrorEvent(ErrorJson(api, FromStatus(status))) : std::move(last));
    reply->End();
  }

  std::string ErrorEvent(const Json& error) const {
    if (api == Api::kOllama) return Dump(error) + "\n";
    return api == Api::kAnthropic ? TypedEvent(error) : Event(error);
  }
};

// One of them.
struct Delivery {
  std::shared_ptr<Choices> all;
  Json log = Json::object();  // who asked for what
  std::size_t index = 0;
  bool counts_prompt = true;
  std::shared_ptr<AnswerShape> shape;
  bool begun = false;
  AnswerParser parser{{}};
  Answer answer{};            // whole answers only
  std::string arguments{};    // of its next call
  std::int32_t thoughts = 0;  // tokens

  // A stream begins before its first text, so that its client sees signs of life while a long prompt is
  // computed.
  void Begin(const ReuseReport& reuse) {
    if (index == 0) all->entry->Start(reuse);
    if (!all->stream || std::exchange(begun, true)) return;
    if (!std::exchange(all->begun, true)) all->reply->Begin(std::string(shape->stream_type()));
    all->reply->Write(shape->Start(reuse));
  }

  // Counts a token, before its text. The tag that ends thoughts is one of them.
  void Count(std::int32_t token) {
    all->entry->CountToken();
    thoughts += parser.thinking() ? 1 : 0;
    shape->TakeToken(token);
  }

  // Returns whether the text goes on.
  bool Take(std::string_view piece) {
    TakeParts(parser.Push(piece));
    return !parser.done() && !all->failed;
  }

  void TakeParts(std::vector<AnswerPart> parts) {
    std::string out;
    for (AnswerPart& part : parts) {
      if (all->stream) {
        out += shape->Delta(part);
      } else {
        Add(std::move(part));
      }
    }
    if (!out.empty()) all->reply->Write(std::move(out));
  }

  // Adds a part to the whole answer.
  void Add(AnswerPart part) {
    using Kind = AnswerPart::Kind;
    switch (part.kind) {
      case Kind::kText: answer.text += part.text; return;
      case Kind::kReasoning: answer.reasoning += part.text; return;
      case Kind::kCallBegin: return;
      case Kind::kCallArguments: arguments += part.text; return;
      case Kind::kCallEnd:
        answer.calls.push_back({std::move(part.call), std::exchange(arguments, {})});
        return;
    }
  }

  // Texts of prompts and answers stay out of logs.
  void Log(const TextResult& result) {
    Json& line = log;
    line["prompt_tokens"] = result.reuse.prompt;
    line["cached_tokens"] = result.reuse.restored;
    if (result.reuse.stored > 0) line["stored_tokens"] = result.reuse.stored;
    if (const Position at = result.reuse.difference.position; at >= 0) line["differs_at"] = at;
    line["generated_tokens"] = result.generated;
    line["first_token_ms"] = std::round(result.first_token_ms * 100.0) / 100.0;
    line["total_ms"] = std::round(result.total_ms * 100.0) / 100.0;
    if (!result.status.ok()) line["error"] = result.status.message();
    if (result.status.ok()) line["end"] = StopReasonName(result.stop);
    LogEvent(result.status.ok() ? LogLevel::kInfo : LogLevel::kError, "request", line);
  }

  void Finish(TextResult result) {
    Log(result);
    if (index == 0) all->entry->Finish(result);
    if (!result.status.ok()) return all->Fail(result.status, *shape);
    result.thoughts = thoughts;
    Begin(result.reuse);
    TakeParts(parser.Flush());
    all->total.generated += result.generated;
    if (counts_prompt) {
      all->total.reuse.prompt += result.reuse.prompt;
      all->total.reuse.restored += result.reuse.restored;
    }
    if (all->stream) {
      all->reply->Write(shape->End(result));
    } else {
      all->wholes[index] = shape->Whole(answer, result);
    }
    if (--all->left > 0 || all->failed) return;
    if (!all->stream) return SendWhole();
    all->reply->Write(shape->Last(all->total));
    all->reply->End();
  }

  void SendWhole() const {
    Json& whole = all->wholes.front();
    for (std::size_t i = 1; i < all->wholes.size(); ++i) shape->AddChoice(whole, all->wholes[i]);
    if (all->wholes.size() > 1) shape->SetTotal(whole, all->total);
    all->reply->Send(200, Dump(whole));
  }
};

// Returns the error of a prompt that leaves the answer no place, in the words that clients of each API look for.
ApiError TooLong(Api api, const char* field, std::ptrdiff_t tokens, int context) {
  switch (api) {
    case Api::kAnthropic:
      return {.message =
                  StrCat("prompt is too long: ", tokens, " tokens > ", context - 1, " maximum")};
    case Api::kOllama:
      return {.message = StrCat("the input length exceeds the context length: the prompt has ",
                                tokens, " tokens, the context has ", context, " with the answer")};
    case Api::kLlamaCpp:
      return {.message =
                  StrCat("the request (", tokens, " tokens) exceeds the available context size (",
                         context, " tokens with the answer)"),
              .code = "context_length_exceeded",
              .more = {{"n_prompt_tokens", tokens}, {"n_ctx", context}}};
    case Api::kOpenAi: break;
  }
  return {.message =
              StrCat("This model's maximum context length is ", context,
                     " tokens with the answer; the prompt has ", tokens,
                     " and exceeds the context window. Please reduce the length of '", field, "'."),
          .param = field,
          .code = "context_length_exceeded"};
}

// Returns what the log says of a request before it has an end.
Json LogBegin(const RouteContext& context) {
  Json log = {{"model", context.model.name}};
  if (!context.user.name.empty()) log["user"] = context.user.name;
  const VolatileCounts& lines = context.volatile_lines;
  if (lines.removed > 0) log["removed_lines"] = lines.removed;
  if (lines.moved > 0) log["moved_lines"] = lines.moved;
  return log;
}

// Lets the parts of a request's text go to its delivery.
void Connect(TextRequest& request, const std::shared_ptr<Delivery>& delivery) {
  request.on_started = [delivery](const ReuseReport& reuse) { delivery->Begin(reuse); };
  request.on_logprob = [delivery](TokenLogprob token) { delivery->shape->Take(std::move(token)); };
  request.on_token = [delivery](std::int32_t token) { delivery->Count(token); };
  request.on_text = [delivery](std::string_view text) { return delivery->Take(text); };
  request.on_done = [delivery](const TextResult& result) { delivery->Finish(result); };
}

}  // namespace

void Deliver(const RouteContext& context, TextRequest request, bool stream,
             std::shared_ptr<AnswerShape> shape) {
  std::vector<AnswerChoice> choices(1);
  choices[0].request = std::move(request);
  choices[0].shape = std::move(shape);
  DeliverChoices(context, std::move(choices), stream);
}

std::vector<AnswerChoice> MakeChoices(
    TextRequest request, std::vector<Prompt> prompts, std::int64_t count,
    const std::function<std::shared_ptr<AnswerShape>(const Prompt& prompt, int index)>&
        make_shape) {
  std::vector<AnswerChoice> all;
  for (Prompt& prompt : prompts) {
    request.prompt = std::move(prompt);
    for (std::int64_t i = 0; i < count; ++i) {
      all.push_back({.request = request,
                     .shape = make_shape(request.prompt, static_cast<int>(all.size())),
                     .counts_prompt = i == 0});
      all.back().request.sampling.seed += static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15;
    }
  }
  return all;
}

void DeliverChoices(const RouteContext& context, std::vector<AnswerChoice> choices, bool stream) {
  TextService& service = context.service;
  const int max = service.engine().context();
  for (const AnswerChoice& choice : choices) {
    const auto tokens = std::ssize(choice.request.prompt.tokens);
    if (tokens < max) continue;
    return context.Refuse(TooLong(context.api, choice.shape->prompt_field(), tokens, max));
  }
  const auto all = std::make_shared<Choices>();
  all->lease = context.lease;
  all->reply = context.reply;
  all->entry = context.entry;
  all->api = context.api;
  all->stream = stream;
  all->left = choices.size();
  all->wholes.resize(choices.size());
  std::vector<TextRequest> requests;
  for (AnswerChoice& choice : choices) {
    const auto delivery = std::make_shared<Delivery>();
    delivery->all = all;
    delivery->index = requests.size();
    delivery->counts_prompt = choice.counts_prompt;
    delivery->shape = choice.shape;
    delivery->log = LogBegin(context);
    delivery->parser = AnswerParser(choice.request.prompt.answer);
    choice.request.salt = context.user.salt;
    choice.request.adapters = context.adapters;
    Connect(choice.request, delivery);
    requests.push_back(std::move(choice.request));
  }
  auto ids = service.Submit(std::move(requests));
  if (!ids.ok()) {
    // Some choices may have begun on the engine's thread.
    service.View([all, shape = choices.front().shape, status = ids.status()](const auto&, auto) {
      all->Fail(status, *shape);
    });
    return;
  }
  context.reply->OnGone([lease = context.lease, ids = std::move(*ids)] {
    for (const RequestId id : ids) lease->Cancel(id);
  });
}

}  // namespace kvcache::server
