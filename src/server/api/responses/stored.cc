#include "server/api/responses/stored.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "base/strings.h"
#include "server/api/responses/shape.h"
#include "server/http/url_text.h"

namespace kvcache::server {
namespace {

void SendUnknown(HttpReply& reply, const std::string& id) {
  SendError(reply, Api::kOpenAi,
            {.status = 404, .message = StrCat("there is no response ", Quoted(id))});
}

// Reads an integer of a query. The error is answered; then there is none.
std::optional<std::int64_t> ReadInteger(const std::string& query, const char* name,
                                        std::int64_t fallback, std::int64_t min, std::int64_t max,
                                        HttpReply& reply) {
  const auto text = QueryField(query, name);
  if (!text || text->empty()) return fallback;
  std::int64_t number = 0;
  const char* const end = text->data() + text->size();
  const auto read = std::from_chars(text->data(), end, number);
  if (read.ec == std::errc() && read.ptr == end && number >= min && number <= max) {
    return number;
  }
  SendError(reply, Api::kOpenAi,
            {.message = StrCat("'", name, "' is ", Quoted(*text), "; must be an integer from ", min,
                               " to ", max),
             .param = name});
  return std::nullopt;
}

void Get(const StoredResponse& stored, const std::string& query, HttpReply& reply) {
  const std::string stream = QueryField(query, "stream").value_or("false");
  if (stream != "true" && stream != "false" && !stream.empty()) {
    return SendError(reply, Api::kOpenAi,
                     {.message = StrCat("'stream' is ", Quoted(stream), "; must be true or false"),
                      .param = "stream"});
  }
  if (stream != "true") return SendJson(reply, stored.response);
  const auto after = ReadInteger(query, "starting_after", -1, -1, INT64_MAX, reply);
  if (!after) return;
  auto events = ResponseEvents(stored, *after);
  if (!events.ok()) {
    return SendError(reply, Api::kOpenAi,
                     {.message = StrCat("'starting_after' ", events.status().message()),
                      .param = "starting_after"});
  }
  // All of them are here: they do not wait in the bounded queue of a stream.
  reply.Send(200, std::move(*events),
             {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}});
}

// Lists items, the last one first unless "order" is "asc".
void GetItems(Json items, const std::string& query, HttpReply& reply) {
  const std::string order = QueryField(query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return SendError(reply, Api::kOpenAi,
                     {.message = StrCat("'order' is ", Quoted(order), "; must be asc or desc"),
                      .param = "order"});
  }
  const auto limit = ReadInteger(query, "limit", 20, 1, 100, reply);
  if (!limit) return;
  if (order == "desc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (const auto after = QueryField(query, "after"); after && !after->empty()) {
    first = std::find_if(items.begin(), items.end(),
                         [&](const Json& item) { return item["id"] == *after; });
    if (first == items.end()) {
      return SendError(reply, Api::kOpenAi,
                       {.message = StrCat("'after' is ", Quoted(*after), ", no item of the list"),
                        .param = "after"});
    }
    ++first;
  }
  Json page = Json::array();
  while (first != items.end() && std::ssize(page) < *limit) page.push_back(*first++);
  const Json first_id = page.empty() ? Json() : page.front()["id"];
  const Json last_id = page.empty() ? Json() : page.back()["id"];
  SendJson(reply, {{"object", "list"},
                   {"data", std::move(page)},
                   {"first_id", first_id},
                   {"last_id", last_id},
                   {"has_more", first != items.end()}});
}

// Returns the user's response that the path names. If there is none, the error is answered.
std::optional<StoredResponse> Find(const ServerContext& context, HttpReply& reply) {
  auto stored = context.responses.Get(context.parameter, context.user.salt);
  if (!stored) SendUnknown(reply, context.parameter);
  return stored;
}

}  // namespace

void GetResponse(const ServerContext& context, const Reply& reply) {
  if (const auto stored = Find(context, *reply)) Get(*stored, context.query, *reply);
}

void GetResponseItems(const ServerContext& context, const Reply& reply) {
  auto stored = Find(context, *reply);
  if (stored) GetItems(std::move(stored->items), context.query, *reply);
}

void DeleteResponse(const ServerContext& context, const Reply& reply) {
  const std::string& id = context.parameter;
  if (!context.responses.Remove(id, context.user.salt)) return SendUnknown(*reply, id);
  SendJson(*reply, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

void CancelResponse(const ServerContext& context, const Reply& reply) {
  if (!Find(context, *reply)) return;
  SendError(*reply, context.api,
            {.message = StrCat("the response ", Quoted(context.parameter),
                               " was not made with 'background'; only such responses can be "
                               "cancelled")});
}

}  // namespace kvcache::server
