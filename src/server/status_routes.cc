// Routes that say how the server is.
#include <string>
#include <string_view>
#include <utility>

#include "base/strings.h"
#include "server/answer.h"

namespace kvcache::server {

using Reply = std::shared_ptr<HttpReply>;

void Health(const ServerContext&, const Reply& reply) {
  SendJson(*reply, {{"status", "ok"}});
}

void Version(const ServerContext&, const Reply& reply) {
  SendJson(*reply, {{"version", KVCACHE_VERSION}});
}

void Models(const ServerContext& context, const Reply& reply) {
  Json list = Json::array();
  for (const ServedModel& model : context.host.source().List()) list.push_back(OpenAiModel(model));
  SendJson(*reply, {{"object", "list"}, {"data", std::move(list)}});
}

}  // namespace kvcache::server
