#include "cli/store_flags.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"
#include "store/redis_url.h"

namespace kvcache::cli {
namespace {

constexpr const char* kNone = "none";
constexpr const char* kMemory = "memory";

bool IsUrl(const std::string& name) {
  return name.find("://") != std::string::npos;
}

Status CheckStore(const std::string& name) {
  if (IsUrl(name)) return OpenRedisStore({.url = name}).status();
  if (name.find(',') == std::string::npos) return Status::Ok();
  return InvalidArgument(Quoted(name) + " has a comma; give --store for each store");
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void Say(const std::string& message) {
  (void)std::fprintf(stderr, "kvcache: prefixes are not stored: %s\n", OneLine(message).c_str());
}

}  // namespace

std::string DefaultStoreDirectory() {
  namespace fs = std::filesystem;
  if (const std::string cache = Variable("XDG_CACHE_HOME"); cache.starts_with('/')) {
    return fs::path(cache) / "kvcache";
  }
  if (const std::string home = Variable("HOME"); home.starts_with('/') && home != "/") {
    return fs::path(home) / ".cache" / "kvcache";
  }
  return "";
}

Result<std::int64_t> ParseBytes(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  const std::size_t power = unit.empty() ? 0 : std::string("KMGT").find(unit) + 1;
  const bool is_known = unit.empty() || (unit.size() == 1 && power > 0);
  if (error != std::errc() || !is_known || number < 0 ||
      number > (std::int64_t{1} << 62) >> (10 * power)) {
    return InvalidArgument(Quoted(text) + " is not a number of bytes, such as 500M or 10G");
  }
  return number << (10 * power);
}

void StoreFlags::Add(FlagSet command) {
  const std::string group = "Store";
  command
      .AddText(
          "--store", &stores_,
          "where evaluated prompts are kept for later processes: a directory, a server "
          "redis://[[user]:password@]host[:port][/db], or 'memory'; again for the next one, the "
          "fastest first; 'none' keeps nothing (default: kvcache in the user's cache directory)")
      .Group(group)
      .ValueName("STORE")
      .Check(CheckStore);
  const auto parse = [this](const std::string& value) -> Status {
    KVCACHE_ASSIGN_OR_RETURN(budget_bytes_, ParseBytes(value));
    if (budget_bytes_ >= kLeastDiskStoreBytes) return Status::Ok();
    return InvalidArgument(StrCat(Quoted(value), " is less than 1M"));
  };
  command
      .AddParsed("--disk-budget", parse,
                 "most bytes of that directory, such as 500M (default: 10G)")
      .Group(group)
      .ValueName("BYTES");
}

std::vector<std::string> StoreFlags::names() const {
  std::vector<std::string> names = stores_;
  if (names.empty()) {
    std::istringstream variable(Variable("KVCACHE_STORE"));
    for (std::string name; std::getline(variable, name, ',');) names.push_back(name);
  }
  if (names.empty()) names.push_back(DefaultStoreDirectory());
  std::erase_if(names, [](const std::string& name) { return name.empty() || name == kNone; });
  return names;
}

std::string StoreFlags::NameOf(const std::string& name) {
  if (!IsUrl(name)) return name;
  const auto url = ParseRedisUrl(name);
  return url.ok() ? url->Name() : std::string("redis");
}

Result<std::unique_ptr<Store>> StoreFlags::Open(const std::string& name) const {
  if (IsUrl(name)) return OpenRedisStore({.url = name});
  if (name == kMemory) return MakeMemoryStore();
  return OpenDiskStore({.directory = name, .budget_bytes = budget_bytes_});
}

Result<StoreStats> StoreFlags::CollectGarbage(const std::string& name) const {
  if (IsUrl(name) || name == kMemory) {
    return Unsupported(
        "only a directory has garbage to collect; a Redis server removes objects itself");
  }
  return kvcache::CollectGarbage({.directory = name, .budget_bytes = budget_bytes_});
}

void StoreFlags::Use(Engine& engine) const {
  if (engine.has_encoder()) return;
  std::vector<std::shared_ptr<Store>> tiers;
  for (const std::string& name : names()) {
    auto store = Open(name);
    if (store.ok()) {
      tiers.push_back(std::move(*store));
    } else {
      Say(store.status().message());
    }
  }
  if (tiers.empty()) return;
  Status status;
  if (tiers.size() == 1) {
    status = engine.UseStore(std::move(tiers.front()));
  } else {
    auto store = MakeTieredStore(std::move(tiers));
    status = store.ok() ? engine.UseStore(std::move(*store)) : store.status();
  }
  if (!status.ok()) Say(status.message());
}

void StoreFlags::Finish(Engine& engine) {
  if (const std::string problem = engine.FlushStore(); !problem.empty()) Say(problem);
}

}  // namespace kvcache::cli
