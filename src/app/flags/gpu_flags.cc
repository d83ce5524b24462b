#include "app/flags/gpu_flags.h"

#include <string>

#include "app/terminal/notes.h"
#include "base/errors.h"
#include "base/parse_number.h"
#include "base/strings.h"
#include "kvcache_engine/engine.h"

namespace kvcache::app {
namespace {

constexpr int kMaxLayers = 4096;

}  // namespace

Flag AddGpuLayers(FlagSet command, int* layers) {
  const auto parse = [layers](const std::string& text) -> Status {
    if (text == "auto") {
      *layers = EngineOptions::kAutoGpuLayers;
      return Status::Ok();
    }
    const auto number = ParseNumber<int>(text);
    if (!number || *number < 0 || *number > kMaxLayers) {
      return InvalidArgument(StrCat("it is ", Quoted(text), "; must be auto or 0 to ", kMaxLayers));
    }
    *layers = static_cast<int>(*number);
    return Status::Ok();
  };
  return command
      .AddParsed(
          "--gpu-layers", parse,
          "layers that a GPU computes, the last ones; 0: none (default: auto, as many as its "
          "memory has room for); changes speed and memory only")
      .ValueName("N");
}

Flag AddNuma(FlagSet command, bool* uses) {
  const auto parse = [uses](const std::string& text) -> Status {
    if (text != "auto" && text != "off") {
      return InvalidArgument(StrCat("it is ", Quoted(text), "; must be auto or off"));
    }
    *uses = text == "auto";
    return Status::Ok();
  };
  return command
      .AddParsed(
          "--numa", parse,
          "auto: on a machine with several memory nodes, threads and weights are spread over "
          "them (default); off: the system decides; changes speed only")
      .ValueName("T");
}

Flag AddVerbose(FlagSet command) {
  return command.AddSwitch("--verbose", &ShowsDetails(),
                           "says on standard error which machine computes which layers, with what "
                           "memory, and why no GPU is used");
}

}  // namespace kvcache::app
