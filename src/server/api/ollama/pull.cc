// POST /api/pull: fetches a model, and tells how far it is.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/errors.h"
#include "server/api/ollama/models.h"
#include "server/request/fields.h"

namespace kvcache::server::ollama {
namespace {

constexpr auto kPause = std::chrono::milliseconds(200);  // between lines of one state

Json LineOf(const PullStep& step) {
  Json line = {{"status", step.status}};
  if (step.digest.empty()) return line;
  line["digest"] = step.digest;
  line["total"] = step.total;
  if (step.completed > 0) line["completed"] = step.completed;
  return line;
}

// Writes the lines of a stream, not more than a client can use.
class PullStream {
 public:
  explicit PullStream(Reply reply) : reply_(std::move(reply)) {
    reply_->Begin("application/x-ndjson");
  }

  void Tell(const PullStep& step) {
    const auto now = std::chrono::steady_clock::now();
    const bool is_whole = step.total > 0 && step.completed == step.total;
    if (step.status == status_ && !is_whole && now - told_ < kPause) return;
    status_ = step.status;
    told_ = now;
    reply_->Write(Dump(LineOf(step)) + "\n");
  }

  void End(const Status& status) {
    if (!status.ok()) reply_->Write(Dump({{"error", status.message()}}) + "\n");
    reply_->End();
  }

 private:
  const Reply reply_;
  std::string status_;
  std::chrono::steady_clock::time_point told_{};
};

}  // namespace

void PullModel(const ServerContext& context, const Json& body) {
  Fields fields(body);
  const std::string name = fields.Text("model", fields.Text("name"));
  if (fields.ok() && name.empty()) fields.Fail("model", "is missing or empty");
  const bool stream = fields.Bool("stream", true);
  // Registries of other machines are asked by https in all cases.
  (void)fields.Bool("insecure", false);
  for (const char* other : {"username", "password"}) fields.Refuse(other, "");
  if (!fields.ok()) return context.Refuse(fields.error());
  ModelSource& source = context.host.source();
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  context.reply->OnGone([gone] { gone->store(true); });
  const auto has_left = [gone] { return gone->load(); };
  if (!stream) {
    const Status status =
        source.Pull(name, {.report = [](const PullStep&) {}, .has_left = has_left});
    return status.ok() ? context.Send({{"status", "success"}}) : context.Refuse(status);
  }
  PullStream lines(context.reply);
  lines.End(source.Pull(
      name, {.report = [&](const PullStep& step) { lines.Tell(step); }, .has_left = has_left}));
}

}  // namespace kvcache::server::ollama
