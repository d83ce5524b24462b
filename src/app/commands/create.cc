// kvcache create: make a model in the store, as a Modelfile describes it.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "app/commands/command.h"
#include "app/commands/create_model.h"
#include "app/flags/fetch_flags.h"
#include "app/flags/model_store.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "model_store/modelfile.h"

namespace kvcache::app {
namespace {

namespace fs = std::filesystem;

struct CreateFlags {
  std::string name;
  std::string modelfile = "Modelfile";
  CreateOptions options{};
  FetchFlags fetch;
};

Status Create(const CreateFlags& flags) {
  KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(flags.name));
  KVCACHE_ASSIGN_OR_RETURN(const std::string text,
                           ReadTextFile(flags.modelfile, kMaxModelfileBytes));
  auto file = ParseModelfile(text);
  if (!file.ok()) return std::move(file).TakeStatus().WithContext(flags.modelfile);
  CreateOptions options = flags.options;
  options.folder = flags.modelfile == "-" ? "." : fs::path(flags.modelfile).parent_path().string();
  options.fetch = [&](const std::string& model) { return flags.fetch.Fetch(model); };
  KVCACHE_ASSIGN_OR_RETURN(const ModelStore store, OpenModelStore());
  return CreateModel(store, name, std::move(file).value(), options).WithContext(flags.modelfile);
}

// Declares --quantize and --quantize-draft.
void AddTypes(FlagSet command, const std::shared_ptr<CreateFlags>& flags) {
  const auto add = [&](const char* name, std::optional<WeightScheme>* scheme, const char* help) {
    const auto parse = [flags, scheme](const std::string& text) -> Status {
      KVCACHE_ASSIGN_OR_RETURN(*scheme, ParseWeightScheme(text));
      return Status::Ok();
    };
    command.AddParsed(name, parse, help).ValueName("T");
  };
  add("--quantize", &flags->options.scheme,
      "convert the matrices of FROM to this type, such as q8_0");
  add("--quantize-draft", &flags->options.draft_scheme,
      "convert the matrices of DRAFT to this type");
}

}  // namespace

Command AddCreate(CommandLine& line) {
  FlagSet command =
      line.AddCommand("create", "Make a model in the store, as a Modelfile describes it");
  const auto flags = std::make_shared<CreateFlags>();
  command.AddText("NAME", &flags->name, "the new model's name: [namespace/]model[:tag]");
  command.AddText("-f,--file", &flags->modelfile, "the Modelfile; - is standard input")
      .ValueName("FILE")
      .ShowDefault();
  AddTypes(command, flags);
  flags->fetch.Add(command);
  command.RefuseEmptyValues({});
  command.CheckParsed(
      [flags] { return flags->name.empty() ? InvalidArgument("NAME is required") : Status::Ok(); });
  return {"create", [flags] { return Create(*flags); }};
}

}  // namespace kvcache::app
