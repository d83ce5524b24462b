// kvcache pull: fetch a model from a registry or a hub.
#include <cstdio>
#include <memory>
#include <string>

#include "app/commands/command.h"
#include "app/flags/fetch_flags.h"
#include "base/errors.h"
#include "base/strings.h"
#include "pull/pull.h"

namespace kvcache::app {
namespace {

struct PullFlags {
  std::string name;
  FetchFlags fetch;
  int stall_seconds = pull::PullOptions{}.stall_seconds;
};

Status Pull(const PullFlags& flags) {
  if (flags.name.ends_with(".gguf")) {
    return InvalidArgument(StrCat(Quoted(flags.name), " is a file; give the name of a model"));
  }
  KVCACHE_ASSIGN_OR_RETURN(const ModelName name, ModelName::Parse(flags.name));
  if (flags.fetch.offline()) {
    return InvalidArgument(StrCat("'", name.Short(),
                                  "' is not fetched: this is offline, as "
                                  "--offline, KVCACHE_OFFLINE or HF_HUB_OFFLINE says"));
  }
  KVCACHE_RETURN_IF_ERROR(PullWithProgress(name, flags.stall_seconds));
  (void)std::printf("%s\n", OneLine(name.Short()).c_str());
  return Status::Ok();
}

}  // namespace

Command AddPull(CommandLine& line) {
  FlagSet command = line.AddCommand("pull", "Fetch a model from a registry or a hub");
  const auto flags = std::make_shared<PullFlags>();
  command.AddText("NAME", &flags->name,
                  "[host/][namespace/]model[:tag], or hf.co/USER/REPO[:QUANTIZATION]");
  command
      .AddNumber("--stall", &flags->stall_seconds,
                 "seconds after which a server that sends nothing counts as silent")
      .Range(1, 86400)
      .ValueName("N")
      .ShowDefault();
  flags->fetch.Add(command);
  command.CheckParsed(
      [flags] { return flags->name.empty() ? InvalidArgument("NAME is required") : Status::Ok(); });
  return {"pull", [flags] { return Pull(*flags); }};
}

}  // namespace kvcache::app
