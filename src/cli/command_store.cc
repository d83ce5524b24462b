// kvcache store: looks at the prefixes that are kept on disk, and removes them.
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/strings.h"
#include "cli/command.h"
#include "cli/json_report.h"
#include "cli/store_flags.h"
#include "store/content_hash.h"

namespace kvcache::cli {
namespace {

struct StoreCommand {
  std::string action;
  std::string key;
  bool all = false;
  bool json = false;
  StoreFlags store;
};

std::string TimeText(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm local{};
  char text[32] = "";
  if (localtime_r(&time, &local) != nullptr) {
    (void)std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &local);
  }
  return text;
}

Status Stat(const StoreCommand& command, Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const StoreStats stats, store.Stats());
  if (command.json) {
    PrintJson({{"directory", command.store.directory()},
               {"objects", stats.objects},
               {"payload_bytes", stats.payload_bytes},
               {"held_bytes", stats.held_bytes},
               {"budget_bytes", stats.budget_bytes}});
    return Status::Ok();
  }
  (void)std::printf("%s\n%s objects · %s of states · the file has %s of at most %s\n",
                    OneLine(command.store.directory()).c_str(),
                    WithThousands(stats.objects).c_str(), HumanBytes(stats.payload_bytes).c_str(),
                    HumanBytes(stats.held_bytes).c_str(), HumanBytes(stats.budget_bytes).c_str());
  return Status::Ok();
}

// The least recently used object comes first.
Status List(const StoreCommand& command, Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  nlohmann::json rows = nlohmann::json::array();
  for (const StoredObject& object : all) {
    if (command.json) {
      rows.push_back({{"key", HexText(object.id.key)},
                      {"fingerprint", HexText(object.id.fingerprint)},
                      {"bytes", object.payload_bytes},
                      {"last_used", object.last_used_s}});
    } else {
      (void)std::printf("%s  %s  %12s  %s\n", HexText(object.id.key, 16).c_str(),
                        HexText(object.id.fingerprint, 16).c_str(),
                        WithThousands(object.payload_bytes).c_str(),
                        TimeText(object.last_used_s).c_str());
    }
  }
  if (command.json) PrintJson(rows);
  return Status::Ok();
}

Status Verify(const StoreCommand& command, Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  std::int64_t whole = 0, damaged = 0;
  for (const StoredObject& object : all) {
    const Status status =
        store.Get(object.id, [](std::span<const std::byte>) { return Status::Ok(); });
    if (status.ok()) ++whole;
    if (status.code() != StatusCode::kCorrupt) continue;
    ++damaged;
    (void)std::fprintf(stderr, "%s: %s; removed\n", HexText(object.id.key, 16).c_str(),
                       status.message().c_str());
  }
  if (command.json) {
    PrintJson({{"whole", whole}, {"damaged", damaged}});
  } else {
    (void)std::printf("%s objects are whole, %s were damaged\n", WithThousands(whole).c_str(),
                      WithThousands(damaged).c_str());
  }
  return Status::Ok();
}

Status CollectGarbageIn(const StoreCommand& command) {
  KVCACHE_ASSIGN_OR_RETURN(const StoreStats stats, command.store.CollectGarbage());
  if (command.json) {
    PrintJson({{"evicted", stats.evicted},
               {"damaged", stats.damaged},
               {"objects", stats.objects},
               {"held_bytes", stats.held_bytes}});
    return Status::Ok();
  }
  (void)std::printf("%s objects removed, %s of them damaged; %s are left, and the file has %s\n",
                    WithThousands(stats.evicted + stats.damaged).c_str(),
                    WithThousands(stats.damaged).c_str(), WithThousands(stats.objects).c_str(),
                    HumanBytes(stats.held_bytes).c_str());
  return Status::Ok();
}

Status RemoveObjects(const StoreCommand& command, Store& store) {
  if (command.key.empty() && !command.all) {
    return {StatusCode::kInvalidArgument,
            "name the beginning of a key that 'kvcache store ls' shows, or give --all"};
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  std::int64_t removed = 0;
  for (const StoredObject& object : all) {
    if (!command.all && !HexText(object.id.key).starts_with(command.key)) continue;
    KVCACHE_RETURN_IF_ERROR(store.Remove(object.id));
    ++removed;
  }
  if (removed == 0 && !command.all) {
    return {StatusCode::kNotFound, "no object's key begins with " + Quoted(command.key)};
  }
  (void)std::printf("%s objects removed\n", WithThousands(removed).c_str());
  return Status::Ok();
}

using Action = Status (*)(const StoreCommand&, Store&);

Action ActionOf(const std::string& name) {
  if (name == "stat") return Stat;
  if (name == "ls") return List;
  if (name == "verify") return Verify;
  return name == "rm" ? RemoveObjects : nullptr;
}

Status Run(const StoreCommand& command) {
  if (command.store.directory().empty()) {
    return {StatusCode::kInvalidArgument, "there is no store; give one with --store DIR"};
  }
  if (command.action == "gc") return CollectGarbageIn(command);
  KVCACHE_ASSIGN_OR_RETURN(const auto store, command.store.Open());
  return ActionOf(command.action)(command, *store);
}

}  // namespace

Command AddStore(CommandLine& line) {
  FlagSet command = line.AddCommand("store", "Look at the prefixes on disk, and remove them");
  const auto flags = std::make_shared<StoreCommand>();
  command.AddText("ACTION", &flags->action, "stat, ls, verify, gc or rm").ValueName("");
  command.AddText("KEY", &flags->key, "rm: the beginning of a key").ValueName("");
  command.AddSwitch("--all", &flags->all, "rm: remove all objects");
  command.AddSwitch("--json", &flags->json, "print JSON instead of text");
  flags->store.Add(command);
  command.RefuseEmptyValues({});
  command.CheckParsed([flags]() -> Status {
    if (flags->action == "gc" || ActionOf(flags->action) != nullptr) return Status::Ok();
    return {StatusCode::kInvalidArgument,
            flags->action.empty() ? "an action is missing: stat, ls, verify, gc or rm"
                                  : Quoted(flags->action) + " is not stat, ls, verify, gc or rm"};
  });
  return {"store", [flags] { return Run(*flags); }};
}

}  // namespace kvcache::cli
