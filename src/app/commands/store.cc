// kvcache store: looks at stored prefixes, moves them to other stores, and removes them.
#include <cstdio>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/store_flags.h"
#include "base/errors.h"
#include "base/strings.h"
#include "store/content_hash.h"
#include "store/snapshot_description.h"
#include "store/store_archive.h"

namespace kvcache::app {
namespace {

struct StoreCommand {
  std::string action;
  std::string key;
  bool all = false;
  bool json = false;
  StoreFlags store;
  std::string name;  // of the store; without a password
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
    PrintJson({{"store", command.name},
               {"objects", stats.objects},
               {"payload_bytes", stats.payload_bytes},
               {"held_bytes", stats.held_bytes},
               {"budget_bytes", stats.budget_bytes}});
    return Status::Ok();
  }
  (void)std::printf(
      "%s\n%s objects · %s of states · %s %s%s\n", OneLine(command.name).c_str(),
      WithThousands(stats.objects).c_str(), HumanBytes(stats.payload_bytes).c_str(),
      store.tier() == StoreTier::kDisk ? "the file has" : "it takes",
      HumanBytes(stats.held_bytes).c_str(),
      stats.budget_bytes > 0 ? StrCat(" of at most ", HumanBytes(stats.budget_bytes)).c_str() : "");
  return Status::Ok();
}

// The least recently used object comes first.
Status List(const StoreCommand& command, Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  nlohmann::json rows = nlohmann::json::array();
  for (const StoredObject& object : all) {
    if (command.json) {
      rows.push_back({{"key", store::HexText(object.id.key)},
                      {"fingerprint", store::HexText(object.id.fingerprint)},
                      {"bytes", object.payload_bytes},
                      {"last_used", object.last_used_s}});
    } else {
      (void)std::printf("%s  %s  %12s  %s\n", store::HexText(object.id.key, 16).c_str(),
                        store::HexText(object.id.fingerprint, 16).c_str(),
                        WithThousands(object.payload_bytes).c_str(),
                        TimeText(object.last_used_s).c_str());
    }
  }
  if (command.json) PrintJson(rows);
  return Status::Ok();
}

// Says what was wrong with the whole file, when it was opened or since.
void PrintRepair(const StoreStats& stats) {
  if (stats.repair.empty()) return;
  (void)std::fprintf(stderr, "kvcache store: %s\n", OneLine(stats.repair).c_str());
}

// What `verify` found, in objects.
struct Verified {
  std::int64_t whole = 0;
  std::int64_t damaged = 0;
  std::int64_t unreadable = 0;  // they may be whole
  std::int64_t gone = 0;        // after they were listed
};

void VerifyOne(Store& store, const StoredObject& object, Verified& found) {
  const Status status =
      store.Get(object.id, [](std::span<const std::byte>) { return Status::Ok(); });
  if (status.ok()) {
    ++found.whole;
  } else if (status.code() == StatusCode::kNotFound) {
    ++found.gone;
  } else if (status.code() == StatusCode::kCorrupt) {
    ++found.damaged;
    const auto is_left = store.Contains(object.id);
    (void)std::fprintf(stderr, "%s: %s; %s\n", store::HexText(object.id.key, 16).c_str(),
                       OneLine(status.message()).c_str(),
                       is_left.ok() && !*is_left ? "removed" : "it could not be removed");
  } else {
    ++found.unreadable;
    (void)std::fprintf(stderr, "%s: %s\n", store::HexText(object.id.key, 16).c_str(),
                       OneLine(status.message()).c_str());
  }
}

void PrintVerified(const StoreCommand& command, const Verified& found, const StoreStats& stats) {
  if (command.json) {
    PrintJson({{"whole", found.whole},
               {"damaged", found.damaged},
               {"unreadable", found.unreadable},
               {"gone", found.gone},
               {"repair", stats.repair}});
    return;
  }
  (void)std::printf("%s objects are whole, %s were damaged", WithThousands(found.whole).c_str(),
                    WithThousands(found.damaged).c_str());
  if (found.unreadable > 0) {
    (void)std::printf(", %s could not be read", WithThousands(found.unreadable).c_str());
  }
  if (found.gone > 0) (void)std::printf(", %s are gone", WithThousands(found.gone).c_str());
  (void)std::printf("\n");
}

// Objects that a running program evicts meanwhile are gone, too: only a file that was discarded is an error.
Status Verify(const StoreCommand& command, Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  KVCACHE_ASSIGN_OR_RETURN(const StoreStats before, store.Usage());
  Verified found;
  for (const StoredObject& object : all) VerifyOne(store, object, found);
  KVCACHE_ASSIGN_OR_RETURN(const StoreStats after, store.Usage());
  PrintRepair(after);
  PrintVerified(command, found, after);
  if (found.unreadable > 0) {
    return {StatusCode::kIo, StrCat(found.unreadable, " objects could not be read")};
  }
  if (found.gone == 0 || after.repair == before.repair) return Status::Ok();
  return {StatusCode::kCorrupt, StrCat(found.gone, " objects are lost with the store's file")};
}

Status CollectGarbageIn(const StoreCommand& command, const std::string& name) {
  KVCACHE_ASSIGN_OR_RETURN(const StoreStats stats, command.store.CollectGarbage(name));
  PrintRepair(stats);
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
    return InvalidArgument(
        "name the beginning of a key that 'kvcache store ls' shows, or give --all");
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  std::int64_t removed = 0;
  for (const StoredObject& object : all) {
    if (!command.all && !store::HexText(object.id.key).starts_with(command.key)) continue;
    KVCACHE_RETURN_IF_ERROR(store.Remove(object.id));
    ++removed;
  }
  if (const auto stats = store.Usage(); stats.ok()) PrintRepair(*stats);
  if (removed == 0 && !command.all) {
    return {StatusCode::kNotFound, "no object's key begins with " + Quoted(command.key)};
  }
  (void)std::printf("%s objects removed\n", WithThousands(removed).c_str());
  if (command.all) {
    const int packed = ClearPackedWeights(command.store.PackedDirectory());
    if (packed > 0) (void)std::printf("%d files of packed weights removed\n", packed);
  }
  return Status::Ok();
}

// Prints what an object is: the range of tokens and the cache of a snapshot, if it is one.
Status Show(const StoreCommand& command, Store& store) {
  if (command.key.empty()) {
    return InvalidArgument("name the beginning of a key that 'kvcache store ls' shows");
  }
  KVCACHE_ASSIGN_OR_RETURN(const std::vector<StoredObject> all, store.List());
  bool has_any = false;
  nlohmann::json rows = nlohmann::json::array();
  for (const StoredObject& object : all) {
    if (!store::HexText(object.id.key).starts_with(command.key)) continue;
    has_any = true;
    std::optional<store::SnapshotDescription> snapshot;
    const Status status = store.Get(object.id, [&](std::span<const std::byte> payload) {
      if (auto read = store::DescribeSnapshot(payload); read.ok()) snapshot = std::move(*read);
      return Status::Ok();
    });
    const std::string state = status.ok() ? "whole" : status.message();
    if (command.json) {
      nlohmann::json row = {{"key", store::HexText(object.id.key)},
                            {"fingerprint", store::HexText(object.id.fingerprint)},
                            {"bytes", object.payload_bytes},
                            {"last_used", object.last_used_s},
                            {"state", state}};
      if (snapshot) {
        row["tokens"] = {snapshot->begin, snapshot->end};
        row["kind"] = snapshot->kind;
        row["cache"] = snapshot->fingerprint;
      }
      rows.push_back(std::move(row));
      continue;
    }
    (void)std::printf(
        "key          %s\nfingerprint  %s\nbytes        %s\nlast used    %s\nstate        %s\n",
        store::HexText(object.id.key).c_str(), store::HexText(object.id.fingerprint).c_str(),
        WithThousands(object.payload_bytes).c_str(), TimeText(object.last_used_s).c_str(),
        OneLine(state).c_str());
    if (snapshot) {
      (void)std::printf("tokens       %d to %d\ncache        %s, %s\n", snapshot->begin,
                        snapshot->end, snapshot->kind.c_str(),
                        OneLine(snapshot->fingerprint).c_str());
    }
  }
  if (!has_any)
    return {StatusCode::kNotFound, "no object's key begins with " + Quoted(command.key)};
  if (command.json) PrintJson(rows);
  return Status::Ok();
}

Status PrintCounts(const StoreCommand& command, const store::ArchiveCounts& counts,
                   const char* what, const char* skipped) {
  if (command.json) {
    PrintJson({{"objects", counts.objects},
               {"payload_bytes", counts.payload_bytes},
               {"skipped", counts.skipped}});
    return Status::Ok();
  }
  (void)std::printf("%s objects %s, %s", WithThousands(counts.objects).c_str(), what,
                    HumanBytes(counts.payload_bytes).c_str());
  if (counts.skipped > 0) {
    (void)std::printf("; %s %s", WithThousands(counts.skipped).c_str(), skipped);
  }
  (void)std::printf("\n");
  return Status::Ok();
}

constexpr const char* kNoFile = "name the file of the export";

Status Export(const StoreCommand& command, Store& store) {
  if (command.key.empty()) return InvalidArgument(kNoFile);
  KVCACHE_ASSIGN_OR_RETURN(const store::ArchiveCounts counts,
                           store::ExportObjects(store, "", command.key));
  return PrintCounts(command, counts, "exported", "were damaged or gone");
}

Status Import(const StoreCommand& command, Store& store) {
  if (command.key.empty()) return InvalidArgument(kNoFile);
  KVCACHE_ASSIGN_OR_RETURN(const store::ArchiveCounts counts,
                           store::ImportObjects(store, command.key));
  return PrintCounts(command, counts, "imported", "did not fit");
}

using Action = Status (*)(const StoreCommand&, Store&);

Action ActionOf(const std::string& name) {
  if (name == "stat") return Stat;
  if (name == "ls") return List;
  if (name == "show") return Show;
  if (name == "verify") return Verify;
  if (name == "export") return Export;
  if (name == "import") return Import;
  return name == "rm" ? RemoveObjects : nullptr;
}

Status Run(StoreCommand& command) {
  const std::vector<std::string> names = command.store.names();
  if (names.size() != 1) {
    return InvalidArgument(names.empty() ? "there is no store; give one with --store"
                                         : "there are several stores; give one with --store");
  }
  if (command.action == "gc") return CollectGarbageIn(command, names.front());
  command.name = StoreFlags::NameOf(names.front());
  KVCACHE_ASSIGN_OR_RETURN(const auto store, command.store.Open(names.front()));
  return ActionOf(command.action)(command, *store);
}

}  // namespace

Command AddStore(CommandLine& line) {
  FlagSet command = line.AddCommand("store", "Look at stored prefixes, move them, and remove them");
  const auto flags = std::make_shared<StoreCommand>();
  command.AddText("ACTION", &flags->action, "stat, ls, show, verify, gc, rm, export or import")
      .ValueName("");
  command.AddText("KEY", &flags->key, "show, rm: the beginning of a key; export, import: a file")
      .ValueName("");
  command.AddSwitch("--all", &flags->all, "rm: remove all objects, and packed weights");
  command.AddSwitch("--json", &flags->json, "print JSON instead of text");
  flags->store.Add(command);
  command.RefuseEmptyValues({});
  command.CheckParsed([flags]() -> Status {
    if (flags->action == "gc" || ActionOf(flags->action) != nullptr) return Status::Ok();
    return InvalidArgument(
        flags->action.empty()
            ? "an action is missing: stat, ls, show, verify, gc, rm, export or import"
            : Quoted(flags->action) + " is not stat, ls, show, verify, gc, rm, export or import");
  });
  return {"store", [flags] { return Run(*flags); }};
}

}  // namespace kvcache::app
