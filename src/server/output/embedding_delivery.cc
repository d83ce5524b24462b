#include "server/output/embedding_delivery.h"

#include <utility>

#include "base/strings.h"
#include "server/log.h"

namespace kvcache::server {
namespace {

void LogRequest(const EmbeddingContext& context, std::size_t inputs,
                const EmbeddingResult& result) {
  Json log = {{"model", context.model.name}};
  if (!context.user.name.empty()) log["user"] = context.user.name;
  log["inputs"] = inputs;
  log["prompt_tokens"] = result.tokens;
  log["cached_tokens"] = result.reused_tokens;
  log["total_ms"] = result.total_ms;
  log["end"] = result.status.ok() ? Json("eos") : Json(OneLine(result.status.message()));
  LogEvent(LogLevel::kInfo, "request", log);
}

ReuseReport ReportOf(const EmbeddingResult& result) {
  ReuseReport reuse;
  reuse.prompt = static_cast<Position>(result.tokens);
  reuse.restored = static_cast<Position>(result.reused_tokens);
  return reuse;
}

}  // namespace

void DeliverEmbeddings(const EmbeddingContext& context, EmbeddingRequest request,
                       std::function<std::string(const EmbeddingResult& result)> write) {
  const std::size_t inputs = request.inputs.size();
  request.adapters = context.adapters;
  // The context holds the lease until the end.
  request.on_done = [context, inputs, write = std::move(write)](const EmbeddingResult& result) {
    LogRequest(context, inputs, result);
    context.entry->Start(ReportOf(result));
    if (!result.status.ok()) return context.Refuse(result.status);
    context.reply->Send(200, write(result));
  };
  const auto id = context.service.Submit(std::move(request));
  if (!id.ok()) return context.Refuse(id.status());
  context.reply->OnGone([lease = context.lease, id = *id] { lease->Cancel(id); });
}

void RefuseInputs(const EmbeddingContext& context, const Fields& fields, bool too_long) {
  ApiError error = FromFields(fields);
  if (!too_long) return context.Refuse(error);
  const int max = context.service.embedder().info().max_input_tokens;
  if (context.api == Api::kOllama) {
    error.message = "the input length exceeds the context length: " + error.message;
  } else {
    error.message =
        StrCat("This model's maximum context length is ", max, " tokens: ", error.message);
    error.code = "context_length_exceeded";
  }
  context.Refuse(error);
}

}  // namespace kvcache::server
