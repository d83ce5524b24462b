#include "server/api/ollama/models.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "model/model.h"
#include "server/output/stamps.h"
#include "server/request/infill.h"
#include "server/request/messages.h"
#include "server/request/request_sampling.h"

namespace kvcache::server::ollama {
namespace {

std::string WithTag(const std::string& name) {
  const std::size_t last = name.rfind('/');
  return name.find(':', last == name.npos ? 0 : last) == name.npos ? name + ":latest" : name;
}

// Returns a name without the tag that names have by default.
std::string WithoutTag(std::string_view name) {
  constexpr std::string_view kLatest = ":latest";
  if (name.ends_with(kLatest)) name.remove_suffix(kLatest.size());
  return std::string(name);
}

// Returns a number as Ollama writes numbers of parameters; empty: it is not known.
std::string CountText(std::int64_t count) {
  if (count <= 0) return {};
  const auto value = static_cast<double>(count);
  char text[32];
  if (count >= 1'000'000'000) {
    (void)std::snprintf(text, sizeof(text), "%.1fB", value / 1e9);
  } else if (count >= 1'000'000) {
    (void)std::snprintf(text, sizeof(text), "%.2fM", value / 1e6);
  } else {
    (void)std::snprintf(text, sizeof(text), "%.0fK", std::ceil(value / 1e3));
  }
  return text;
}

Json Details(const ServedModel& model) {
  Json families = Json::array();
  if (!model.family.empty()) families.push_back(model.family);
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", model.family},
          {"families", std::move(families)},
          {"parameter_size", CountText(model.parameter_count)},
          {"quantization_level", model.quantization}};
}

Json Entry(const ServedModel& model) {
  return {{"name", WithTag(model.name)},
          {"model", WithTag(model.name)},
          {"modified_at", UtcTime(model.created)},
          {"size", model.bytes},
          {"digest", model.digest},
          {"details", Details(model)}};
}

// Reads a duration as Go writes it, such as "5m" or "1h30m". A number alone is in seconds.
std::optional<double> ReadDuration(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty()) return std::nullopt;
  double seconds = 0.0;
  bool has_unit = false;
  while (!text.empty()) {
    double number = 0.0;
    const auto read =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (read.ec != std::errc() || text.front() == '-') return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(read.ptr - text.data()));
    const std::size_t end = std::min(text.find_first_of("0123456789."), text.size());
    const std::string_view unit = text.substr(0, end);
    text.remove_prefix(end);
    double scale = 0.0;
    if (unit == "ns") scale = 1e-9;
    if (unit == "us" || unit == "\u00b5s" || unit == "\u03bcs") scale = 1e-6;
    if (unit == "ms") scale = 1e-3;
    if (unit == "s" || (unit.empty() && text.empty() && !has_unit)) scale = 1.0;
    if (unit == "m") scale = 60.0;
    if (unit == "h") scale = 3600.0;
    if (scale == 0.0) return std::nullopt;
    has_unit = true;
    seconds += number * scale;
  }
  return negative && seconds > 0.0 ? -seconds : seconds;
}

// Returns the text of a field that must be given.
std::string Needed(Fields& fields, const char* name, const char* old_name = "") {
  std::string text = fields.Text(name, *old_name == '\0' ? "" : fields.Text(old_name));
  if (fields.ok() && text.empty()) fields.Fail(name, "is missing or empty");
  return text;
}

// Answers a change of the list of models.
void SendDone(const ServerContext& context, const Status& status, bool stream = false) {
  if (!status.ok()) return context.Refuse(status);
  const Json done = {{"status", "success"}};
  if (!stream) return context.Send(done);
  context.reply->Send(200, Dump(done) + "\n", {{"Content-Type", "application/x-ndjson"}});
}

// The version of Ollama whose requests and answers are those of the routes here. Its clients ask for it before
// anything else, and refuse old ones. Later versions have log probabilities, which /api/chat has not.
constexpr const char* kOllamaVersion = "0.12.10";

}  // namespace

Result<std::optional<double>> ReadKeepAlive(const Json& body) {
  const auto found = body.find("keep_alive");
  if (found == body.end() || found->is_null()) return std::optional<double>();
  std::optional<double> seconds;
  if (found->is_number()) seconds = found->get<double>();
  if (found->is_string()) seconds = ReadDuration(found->get_ref<const std::string&>());
  if (!seconds || !std::isfinite(*seconds)) {
    return InvalidArgument("'keep_alive' must be a number of seconds or a duration such as \"5m\"");
  }
  return std::optional(*seconds < 0.0 ? kForever : *seconds);
}

template <Kind kKind>
bool OnlyLoads(const ServerContext& context, const ServedModel& model, const Json& body) {
  constexpr bool kChat = kKind == Kind::kChat;
  const Fields fields(body);
  const Json* const prompt = fields.Find(kChat ? "messages" : "prompt");
  const bool is_empty = prompt == nullptr || *prompt == (kChat ? Json::array() : Json(""));
  if (!is_empty) return false;
  const auto answer = [context, name = model.name](const char* reason) {
    Json line = {{"model", name}, {"created_at", UtcTime(UnixSeconds())}};
    if (kChat) line["message"] = {{"role", "assistant"}, {"content", ""}};
    if (!kChat) line["response"] = "";
    line["done_reason"] = reason;
    line["done"] = true;
    context.Send(line);
  };
  const auto read = ReadKeepAlive(body);
  const std::optional<double> stay = read.ok() && context.user.is_admin ? *read : std::nullopt;
  if (stay == 0.0) {
    context.host.Unload(model);
    answer("unload");
    return true;
  }
  context.host.Acquire(model, stay, [answer, context](const Result<ModelLease>& lease) {
    if (!lease.ok()) return context.Refuse(lease.status());
    answer("load");
  });
  return true;
}

template bool OnlyLoads<Kind::kChat>(const ServerContext&, const ServedModel&, const Json&);
template bool OnlyLoads<Kind::kText>(const ServerContext&, const ServedModel&, const Json&);

void ShowVersion(const ServerContext& context) {
  context.Send({{"version", kOllamaVersion}, {"kvcache", KVCACHE_VERSION}});
}

namespace {

// Returns what /api/show says of any model. `context`: tokens.
Json Shown(const ServedModel& model, std::int64_t context, Json capabilities) {
  const std::string& family = model.family;
  std::string parameters;
  for (const auto& [name, value] : model.parameters.items()) {
    for (const Json& one : value.is_array() ? value : Json::array({value})) {
      if (!parameters.empty()) parameters += '\n';
      parameters +=
          StrCat(name, std::string(name.size() < 30 ? 31 - name.size() : 1, ' '), Dump(one));
    }
  }
  Json shown = {{"details", Details(model)},
                {"model_info",
                 {{"general.architecture", family},
                  {"general.basename", WithoutTag(model.name)},  // Copilot shows it
                  {family + ".context_length", context}}},
                {"capabilities", std::move(capabilities)},
                {"modified_at", UtcTime(model.created)}};
  if (model.parameter_count > 0) {
    shown["model_info"]["general.parameter_count"] = model.parameter_count;
  }
  if (model.embedding_length > 0) {
    shown["model_info"][family + ".embedding_length"] = model.embedding_length;
  }
  if (!parameters.empty()) shown["parameters"] = parameters;
  if (!model.system.empty()) shown["system"] = model.system;
  if (!model.chat_template.empty()) shown["template"] = model.chat_template;
  if (!model.messages.empty()) shown["messages"] = model.messages;
  return shown;
}

}  // namespace

void ShowModel(const RouteContext& context, const Json& /*body*/) {
  Json capabilities = Json::array({"completion"});
  if (context.service.dialect()->has_calls()) capabilities.push_back("tools");
  if (context.service.reasons()) capabilities.push_back("thinking");
  if (CanInfill(context.service.engine())) capabilities.push_back("insert");
  if (context.service.engine().CheckTakesPictures().ok()) capabilities.push_back("vision");
  ServedModel model = context.model;
  model.family = context.service.engine().info().architecture;
  Json shown = Shown(model, context.service.engine().context(), std::move(capabilities));
  shown["dialect"] = context.service.dialect()->name;
  context.Send(shown);
}

void ShowEmbedder(const ServerContext& context, const ServedModel& model) {
  const char* const use = model.purpose == FilePurpose::kReranking ? "rerank" : "embedding";
  context.Send(Shown(model, model.trained_context, Json::array({use})));
}

void ListModels(const ServerContext& context) {
  Json list = Json::array();
  for (const ServedModel& model : context.host.source().List()) list.push_back(Entry(model));
  context.Send({{"models", std::move(list)}});
}

void ListLoaded(const ServerContext& context) {
  Json list = Json::array();
  for (const LoadedModel& loaded : context.host.Loaded()) {
    ServedModel model = loaded.model;
    model.family = loaded.service->architecture();
    Json entry = Entry(model);
    // A model that stays forever has a date that every client can read.
    const bool has_end = loaded.seconds_left < 1e9;
    const auto left = static_cast<std::int64_t>(has_end ? std::max(loaded.seconds_left, 0.0) : 0.0);
    entry["expires_at"] = has_end ? UtcTime(UnixSeconds() + left) : "2999-01-01T00:00:00Z";
    entry["size_vram"] = 0;
    entry["context_length"] = loaded.service->context();
    list.push_back(std::move(entry));
  }
  context.Send({{"models", std::move(list)}});
}

void CreateModel(const ServerContext& context, const Json& body) {
  Fields fields(body);
  NewModel model{.name = Needed(fields, "model", "name"), .from = Needed(fields, "from")};
  const bool stream = fields.Bool("stream", true);
  for (const char* name : {"files", "adapters", "modelfile", "path", "quantize"}) {
    fields.Refuse(name, "");
  }
  if (fields.Has("system")) model.system = fields.Text("system");
  if (fields.Has("template")) model.chat_template = fields.Text("template");
  model.licenses = fields.Texts("license", 64);
  if (const Json* const given = fields.Find("parameters"); given != nullptr) {
    if (!given->is_object()) fields.Fail("parameters", "must be an object");
    model.parameters = *given;
  }
  if (const Json* const given = fields.Find("messages"); given != nullptr) {
    if (!given->is_array()) fields.Fail("messages", "must be an array");
    model.messages = *given;
  }
  if (!fields.ok()) return context.Refuse(fields.error());
  static const Json kNone = Json::object();
  Fields sampling(kNone, "parameters.", &model.parameters);
  (void)ReadSampling(sampling);
  if (!sampling.ok()) return context.Refuse(sampling.error());
  if (!model.messages.empty()) {
    const auto read = ReadMessages(model.messages);
    if (!read.ok()) return context.Refuse(read.status());
    model.messages = *read;
  }
  SendDone(context, context.host.source().Create(model), stream);
}

void CopyModel(const ServerContext& context, const Json& body) {
  Fields fields(body);
  const std::string from = Needed(fields, "source");
  const std::string to = Needed(fields, "destination");
  if (!fields.ok()) return context.Refuse(fields.error());
  SendDone(context, context.host.source().Copy(from, to));
}

void DeleteModel(const ServerContext& context, const Json& body) {
  Fields fields(body);
  const std::string name = Needed(fields, "model", "name");
  if (!fields.ok()) return context.Refuse(fields.error());
  auto model = context.host.source().Find(name);
  const Status removed = model.ok() ? context.host.source().Remove(name) : model.status();
  for (const bool embeds : {false, true}) {
    if (!removed.ok()) break;
    model->embeds = embeds;
    context.host.Unload(*model);
  }
  SendDone(context, removed);
}

}  // namespace kvcache::server::ollama
