#include "server/api/responses/stored.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/parse_number.h"
#include "base/strings.h"
#include "server/api/responses/shape.h"
#include "server/http/url_text.h"
#include "server/models/picture_book.h"

namespace kvcache::server::responses {
namespace {

void RefuseUnknown(const ServerContext& context) {
  context.Refuse(
      {.status = 404, .message = StrCat("there is no response ", Quoted(context.parameter))});
}

// Reads an integer of the query. The error is answered; then there is none.
std::optional<std::int64_t> ReadInteger(const ServerContext& context, const char* name,
                                        std::int64_t fallback, std::int64_t min, std::int64_t max) {
  const auto text = QueryField(context.query, name);
  if (!text || text->empty()) return fallback;
  const auto number = ParseNumber<std::int64_t>(*text);
  if (number && *number >= min && *number <= max) return number;
  context.Refuse({.message = StrCat("'", name, "' is ", Quoted(*text), "; must be an integer from ",
                                    min, " to ", max),
                  .param = name});
  return std::nullopt;
}

void Get(const ServerContext& context, const StoredResponse& stored) {
  const std::string stream = QueryField(context.query, "stream").value_or("false");
  if (stream != "true" && stream != "false" && !stream.empty()) {
    return context.Refuse(
        {.message = StrCat("'stream' is ", Quoted(stream), "; must be true or false"),
         .param = "stream"});
  }
  if (stream != "true") return context.Send(stored.response);
  const auto after = ReadInteger(context, "starting_after", -1, -1, INT64_MAX);
  if (!after) return;
  auto events = EventsOf(stored, *after);
  if (!events.ok()) {
    return context.Refuse({.message = StrCat("'starting_after' ", events.status().message()),
                           .param = "starting_after"});
  }
  // All of them are here: they do not wait in the bounded queue of a stream.
  context.reply->Send(
      200, std::move(*events),
      {{"Content-Type", "text/event-stream; charset=utf-8"}, {"Cache-Control", "no-cache"}});
}

// Shows pictures as parts of their own. Their files are not kept, so the parts have none.
void ShowPictures(Json& item) {
  for (const char* const key : {"content", "output"}) {
    const auto parts = item.find(key);
    if (parts == item.end() || !parts->is_array()) continue;
    for (Json& part : *parts) {
      const auto text = part.is_object() ? part.find("text") : part.end();
      if (text == part.end() || !text->is_string()) continue;
      if (!PictureBook::IsMark(text->get_ref<const std::string&>())) continue;
      part = {{"type", "input_image"},
              {"detail", "auto"},
              {"image_url", nullptr},
              {"file_id", nullptr}};
    }
  }
}

// Lists items, the last one first unless "order" is "asc".
void GetItems(const ServerContext& context, Json items) {
  const std::string order = QueryField(context.query, "order").value_or("desc");
  if (order != "asc" && order != "desc") {
    return context.Refuse({.message = StrCat("'order' is ", Quoted(order), "; must be asc or desc"),
                           .param = "order"});
  }
  const auto limit = ReadInteger(context, "limit", 20, 1, 100);
  if (!limit) return;
  if (order == "desc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (const auto after = QueryField(context.query, "after"); after && !after->empty()) {
    first = std::find_if(items.begin(), items.end(),
                         [&](const Json& item) { return item["id"] == *after; });
    if (first == items.end()) {
      return context.Refuse(
          {.message = StrCat("'after' is ", Quoted(*after), ", no item of the list"),
           .param = "after"});
    }
    ++first;
  }
  Json page = Json::array();
  while (first != items.end() && std::ssize(page) < *limit) page.push_back(*first++);
  for (Json& item : page) ShowPictures(item);
  const Json first_id = page.empty() ? Json() : page.front()["id"];
  const Json last_id = page.empty() ? Json() : page.back()["id"];
  context.Send({{"object", "list"},
                {"data", std::move(page)},
                {"first_id", first_id},
                {"last_id", last_id},
                {"has_more", first != items.end()}});
}

// Returns the user's response that the path names. If there is none, the error is answered.
std::optional<StoredResponse> Find(const ServerContext& context) {
  auto stored = context.responses.Get(context.parameter, context.user.salt);
  if (!stored) RefuseUnknown(context);
  return stored;
}

}  // namespace

void GetResponse(const ServerContext& context) {
  if (const auto stored = Find(context)) Get(context, *stored);
}

void GetResponseItems(const ServerContext& context) {
  if (auto stored = Find(context)) GetItems(context, std::move(stored->items));
}

void DeleteResponse(const ServerContext& context) {
  const std::string& id = context.parameter;
  if (!context.responses.Remove(id, context.user.salt)) return RefuseUnknown(context);
  context.Send({{"id", id}, {"object", "response"}, {"deleted", true}});
}

void CancelResponse(const ServerContext& context) {
  if (!Find(context)) return;
  context.Refuse({.message = StrCat("the response ", Quoted(context.parameter),
                                    " was not made with 'background'; only such responses can be "
                                    "cancelled")});
}

}  // namespace kvcache::server::responses
