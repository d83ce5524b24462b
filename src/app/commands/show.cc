// kvcache show, cp, rm: the models of the store.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/model_store.h"
#include "app/flags/store_flags.h"
#include "app/terminal/shown_text.h"
#include "base/errors.h"
#include "base/strings.h"
#include "model_store/modelfile.h"

namespace kvcache::app {
namespace {

struct ShowFlags {
  std::string name;
  bool verify = false;
  bool json = false;
};

struct CopyFlags {
  std::string source;
  std::string target;
};

Status Verify(const ModelStore& store, const Manifest& manifest) {
  KVCACHE_RETURN_IF_ERROR(store.Verify(manifest.config));
  for (const ManifestLayer& layer : manifest.layers) KVCACHE_RETURN_IF_ERROR(store.Verify(layer));
  return Status::Ok();
}

// Returns the Modelfile that makes the model again.
std::string TextOf(const StoredModel& model) {
  Modelfile file;
  file.from = model.path;
  file.draft = model.draft;
  file.adapters = model.adapters;
  file.parameters = model.parameters;
  file.chat_template = model.chat_template;
  file.system = model.system;
  file.messages = model.messages;
  file.licenses = model.licenses;
  return ModelfileText(file);
}

void PrintModelJson(const Manifest& manifest, const StoredModel& model) {
  nlohmann::json layers = nlohmann::json::array();
  for (const ManifestLayer& layer : manifest.layers) {
    layers.push_back({{"type", layer.media_type}, {"digest", layer.digest}, {"bytes", layer.size}});
  }
  nlohmann::json object = {
      {"name", model.name}, {"path", model.path}, {"layers", layers}, {"modelfile", TextOf(model)}};
  if (!model.draft.empty()) object["draft"] = model.draft;
  if (!model.adapters.empty()) object["adapters"] = model.adapters;
  PrintJson(object);
}

Status Show(const ShowFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(flags.name));
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  KVCACHE_ASSIGN_OR_RETURN(const Manifest manifest, store.Read(name));
  if (flags.verify) KVCACHE_RETURN_IF_ERROR(Verify(store, manifest));
  KVCACHE_ASSIGN_OR_RETURN(const StoredModel model, ReadStoredModel(store, name));
  if (flags.json) {
    PrintModelJson(manifest, model);
    return Status::Ok();
  }
  const std::string text = Shown(TextOf(model));
  (void)std::fwrite(text.data(), 1, text.size(), stdout);
  return Status::Ok();
}

Status Copy(const CopyFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelName source, ModelName::Parse(flags.source));
  KVCACHE_ASSIGN_OR_RETURN(const ModelName target, ModelName::Parse(flags.target));
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  KVCACHE_ASSIGN_OR_RETURN(StoreLock lock, store.Lock());
  KVCACHE_ASSIGN_OR_RETURN(const Manifest manifest, store.Read(source));
  return store.Write(lock, target, manifest);
}

Status Remove(const std::string& text) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(text));
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  const auto model = ReadStoredModel(store, name);
  const std::string packed = model.ok() ? PackedWeightsOf(model->path) : "";
  KVCACHE_ASSIGN_OR_RETURN(const StoreLock lock, store.Lock());
  Status status = store.Remove(lock, name);
  if (model.ok()) RemovePackedWeights(packed, model->path);
  return status;
}

Status Require(const std::string& value, std::string_view name) {
  return value.empty() ? InvalidArgument(StrCat(name, " is required")) : Status::Ok();
}

}  // namespace

Command AddShow(CommandLine& line) {
  FlagSet command = line.AddCommand("show", "Show a stored model as a Modelfile");
  const auto flags = std::make_shared<ShowFlags>();
  command.AddText("NAME", &flags->name, "the model's name in the store");
  command.AddSwitch("--verify", &flags->verify, "read all of its blobs and compare their digests");
  command.AddSwitch("--json", &flags->json, "print one JSON object");
  command.CheckParsed([flags] { return Require(flags->name, "NAME"); });
  return {"show", [flags] { return Show(*flags); }};
}

Command AddCopy(CommandLine& line) {
  FlagSet command = line.AddCommand("cp", "Give a stored model a second name");
  const auto flags = std::make_shared<CopyFlags>();
  command.AddText("NAME", &flags->source, "the model's name in the store");
  command.AddText("COPY", &flags->target, "the second name");
  command.CheckParsed([flags] {
    const Status named = Require(flags->source, "NAME");
    return named.ok() ? Require(flags->target, "COPY") : named;
  });
  return {"cp", [flags] { return Copy(*flags); }};
}

Command AddRemove(CommandLine& line) {
  FlagSet command =
      line.AddCommand("rm", "Remove a stored model, and its blobs that no other model has");
  const auto name = std::make_shared<std::string>();
  command.AddText("NAME", name.get(), "the model's name in the store");
  command.CheckParsed([name] { return Require(*name, "NAME"); });
  return {"rm", [name] { return Remove(*name); }};
}

}  // namespace kvcache::app
