#include "app/flags/serve_flags.h"

#include <algorithm>

#include "app/flags/draft_flags.h"
#include "base/errors.h"
#include "base/strings.h"
#include "dialect/dialect.h"

namespace kvcache::app {
namespace {

constexpr const char* kServerGroup = "Server";

// Returns a check that accepts the words only.
ValueFunction OneOf(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) -> Status {
    if (std::find(words.begin(), words.end(), text) != words.end()) return Status::Ok();
    std::string list = words.front();
    for (std::size_t i = 1; i < words.size(); ++i) {
      list += StrCat(i + 1 == words.size() ? " or " : ", ", words[i]);
    }
    return InvalidArgument(StrCat(Quoted(text), " is not ", list));
  };
}

void AddNumber(FlagSet command, const char* name, int* value, int min, int max, const char* help) {
  const bool is_time = std::string_view(name).ends_with("-ms");
  command.AddNumber(name, value, help)
      .Range(min, max)
      .Group(kServerGroup)
      .ValueName(is_time ? "MS" : "N")
      .ShowDefault();
}

void AddLimits(FlagSet command, ServeFlags& flags) {
  AddNumber(command, "--models", &flags.max_models, 1, 1024,
            "models that are loaded at once; those that were used last stay");
  AddNumber(command, "--keep-alive", &flags.keep_alive, -1, 1 << 30,
            "seconds that a model stays loaded without requests; -1: until another one needs its "
            "place");
  AddNumber(command, "--sequences", &flags.sequences, 1, 256,
            "requests that are computed at once; others wait");
  AddNumber(command, "--step-ms", &flags.step_ms, 1, SchedulerOptions::kMaxStepMs,
            "milliseconds that prompts, which are read in parts, add at most to each wait for a "
            "token of another request; less makes long prompts slower");
  AddNumber(command, "--stop-seconds", &flags.stop_seconds, 0, 86400,
            "after SIGTERM or SIGINT, running requests may end for this long");
}

void AddAddress(FlagSet command, ServeFlags& flags) {
  command
      .AddText("--host", &flags.host,
               "the IP address to listen on; others than loopback are open to everyone who reaches "
               "it")
      .Group(kServerGroup)
      .ValueName("ADDRESS")
      .ShowDefault();
  AddNumber(command, "--port", &flags.port, 0, 65535, "the port; 0: any free one");
}

void AddAccess(FlagSet command, ServeFlags& flags) {
  const auto add = [&](const char* name, auto& value, const char* type, const char* help) {
    command.AddText(name, &value, help).Group(kServerGroup).ValueName(type);
  };
  add("--api-keys", flags.api_keys, "FILE",
      "a file with one key per line; requests then need one ('Authorization: Bearer KEY' or "
      "'x-api-key: KEY'), and users share nothing (default: everyone who reaches the server)");
  add("--tls-cert", flags.tls_certificate, "FILE",
      "a PEM file with a certificate; the server then speaks HTTPS only; SIGHUP reads it and its "
      "key again");
  add("--tls-key", flags.tls_key, "FILE", "a PEM file with the certificate's key");
  add("--cors", flags.origins, "ORIGIN",
      "an origin whose pages may read answers, such as https://chat.example; *: all; may be given "
      "several times");
}

void AddRequests(FlagSet command, ServeFlags& flags) {
  command
      .AddText("--volatile-lines", &flags.volatile_lines,
               "a file with lines that clients change on every call, such as clocks; they are "
               "removed from conversations or moved to their end, so that prompts share their "
               "beginnings (default: none)")
      .Group(kServerGroup)
      .ValueName("FILE");
  command
      .AddSwitch("--ignore-images", &flags.ignore_images,
                 "puts a note in the place of pictures, files and sounds in requests; without it "
                 "such requests are refused, unless they have pictures and --mmproj is given")
      .Group(kServerGroup);
}

void AddDialect(FlagSet command, ServeFlags& flags) {
  command
      .AddText("--dialect", &flags.dialect,
               "how models think and call tools, instead of what their templates say")
      .Check(CheckDialect)
      .Group(kServerGroup)
      .ValueName("NAME");
}

void AddLog(FlagSet command, ServeFlags& flags) {
  command
      .AddText("--log", &flags.log,
               "what is written to standard error: off, error, or info: each request with its "
               "numbers, and models that come and go; never texts")
      .Group(kServerGroup)
      .ValueName("LEVEL")
      .ShowDefault()
      .Check(OneOf({"off", "error", "info"}));
  command.AddText("--log-form", &flags.log_form, "lines of text or json")
      .Group(kServerGroup)
      .ValueName("FORM")
      .ShowDefault()
      .Check(OneOf({"text", "json"}));
}

}  // namespace

void ServeFlags::Add(FlagSet command) {
  command
      .AddText(
          "MODEL", &models,
          "a .gguf file, or a name that 'kvcache list' shows; several are loaded when requests "
          "ask for them (default: all that 'kvcache list' shows, and story for requests that "
          "name none)")
      .ValueName("…");
  engine.AddWithoutModel(command);
  store.Add(command);
  fetch.Add(command);
  AddDraftFlag(command, &draft);
  adapters.Add(command);
  pictures.AddTower(command);
  AddAddress(command, *this);
  AddAccess(command, *this);
  AddLimits(command, *this);
  AddRequests(command, *this);
  AddDialect(command, *this);
  AddLog(command, *this);
  command.RefuseEmptyValues({});
}

}  // namespace kvcache::app
