#include "app/flags/store_flags.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <sstream>
#include <system_error>
#include <utility>

#include "app/terminal/notes.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "engine/engine_impl.h"
#include "store/redis/redis_url.h"

namespace kvcache::app {
namespace {

constexpr std::int64_t kMinBudgetBytes = 1 << 20;
static_assert(kMinBudgetBytes == kMinDiskStoreBytes);
// Nobody waits long at the end of a command: a disk takes a second or two for what is left.
constexpr std::uint64_t kMaxLeftBytes = std::uint64_t{128} << 20;
constexpr const char* kNone = "none";
constexpr const char* kMemory = "memory";
constexpr const char* kOff = "off";

bool IsUrl(const std::string& name) {
  return name.find("://") != std::string::npos;
}

// A comma in a password is written %2C in any case.
std::vector<std::string> DivideAtCommas(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream stream(text);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
  return names;
}

Status CheckStores(const std::string& text) {
  for (const std::string& name : DivideAtCommas(text)) {
    if (name.empty()) return InvalidArgument(Quoted(text) + " has an empty name of a store");
    if (IsUrl(name)) KVCACHE_RETURN_IF_ERROR(OpenRedisStore({.url = name}).status());
  }
  return Status::Ok();
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Notes of other threads, which wait until nobody types any more.
class LateNotes {
 public:
  void Add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts_.push_back(text);
  }
  void Show() {
    const std::lock_guard lock(mutex_);
    for (const std::string& text : texts_) AddNote(text);
    texts_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

LateNotes& NotesForTheEnd() {
  static LateNotes notes;
  return notes;
}

void Tell(const std::string& message) {
  AddNote("prefixes are not stored: " + message);
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
      .AddText("--store", &stores_,
               "where evaluated prompts are kept for later processes: a directory, a server "
               "redis://[[user]:password@]host[:port][/db], or 'memory'; several with commas, the "
               "fastest "
               "first; 'none' keeps nothing (default: kvcache in the user's cache directory)")
      .Group(group)
      .ValueName("STORE")
      .Check(CheckStores);
  const auto parse_into = [](std::int64_t* bytes) {
    return [bytes](const std::string& value) -> Status {
      KVCACHE_ASSIGN_OR_RETURN(*bytes, ParseBytes(value));
      if (*bytes >= kMinBudgetBytes) return Status::Ok();
      return InvalidArgument(StrCat(Quoted(value), " is less than 1M"));
    };
  };
  command
      .AddParsed("--disk-budget", parse_into(&budget_bytes_),
                 "most bytes of that directory, such as 500M (default: 10G)")
      .Group(group)
      .ValueName("BYTES");
  command
      .AddParsed(
          "--memory-budget", parse_into(&memory_bytes_),
          "most bytes of memory for keys, values and states, such as 4G: live requests and what "
          "earlier prompts left (default: half of what the machine has free)")
      .Group(group)
      .ValueName("BYTES");
  command
      .AddText(
          "--packed-weights", &packed_,
          "where weights are kept in the form that the processor reads, about as many bytes as "
          "the model's file, so that its next start is faster: a directory, or 'off' (default: "
          "'packed' in the directory of --store, if there is one)")
      .Group(group)
      .ValueName("DIR");
  command
      .AddParsed("--packed-budget", parse_into(&packed_bytes_),
                 "most bytes of that directory; larger models are not kept (default: 32G)")
      .Group(group)
      .ValueName("BYTES");
}

std::string StoreFlags::PackedDirectory() const {
  if (packed_ == kOff) return "";
  if (!packed_.empty()) return packed_;
  for (const std::string& name : names()) {
    if (TierOf(name) == StoreTier::kDisk) return StrCat(name, "/packed");
  }
  return "";
}

std::string PackedWeightsOf(const std::string& model) {
  const std::string directory = StoreFlags().PackedDirectory();
  return directory.empty() ? "" : PackedWeightsName(model);
}

void RemovePackedWeights(const std::string& packed, const std::string& model) {
  std::error_code error;
  if (!packed.empty() && !std::filesystem::exists(model, error)) {
    (void)ClearPackedWeights(StoreFlags().PackedDirectory(), packed);
  }
}

void StoreFlags::UsePackedWeights(packed::ModelPanels::Tell tell) const {
  kvcache::UsePackedWeights({.directory = PackedDirectory(),
                             .budget_bytes = static_cast<std::uint64_t>(packed_bytes_),
                             .tell = std::move(tell)});
}

void StoreFlags::TellNotes(packed::ModelPanels::Report report, const std::string& text) {
  if (report == packed::ModelPanels::Report::kNoRoom && !ShowsDetails()) return;
  NotesForTheEnd().Add(text);
}

Result<std::int64_t> StoreFlags::TokensBesideContext(Engine& engine) const {
  constexpr std::int64_t kAny = std::int64_t{1} << 62;
  const std::int64_t budget = plan().CacheBudget();
  if (budget == 0) return kAny;
  const EngineOptions& options = engine.options();
  const std::span<const LayerMemory> layers = engine.info().memory;
  const std::int64_t token = BytesPerToken(layers, options.k_type, options.v_type);
  const std::int64_t context =
      token * engine.context() + BytesPerSequence(layers, options.k_type, options.v_type);
  if (context > budget) {
    return InvalidArgument(StrCat("a context of ", WithThousands(engine.context()),
                                  " tokens takes ", WithThousands(context),
                                  " bytes, more than --memory-budget leaves for it, ",
                                  WithThousands(budget), ": give a smaller --ctx"));
  }
  return token == 0 ? kAny : (budget - context) / token;
}

MemoryPlan StoreFlags::plan() const {
  const std::vector<std::string> stores = names();
  const bool has_store = std::find(stores.begin(), stores.end(), kMemory) != stores.end();
  return MemoryPlan(memory_bytes_,
                    has_store ? MemoryPlan::MemoryStore::kUsed : MemoryPlan::MemoryStore::kNone);
}

std::vector<std::string> StoreFlags::names() const {
  std::vector<std::string> names;
  for (const std::string& given : stores_) {
    for (std::string& name : DivideAtCommas(given)) names.push_back(std::move(name));
  }
  if (names.empty()) names = DivideAtCommas(Variable("KVCACHE_STORE"));
  if (names.empty()) names.push_back(DefaultStoreDirectory());
  std::erase_if(names, [](const std::string& name) { return name.empty() || name == kNone; });
  return names;
}

StoreTier StoreFlags::TierOf(const std::string& name) {
  if (IsUrl(name)) return StoreTier::kRemote;
  return name == kMemory ? StoreTier::kMemory : StoreTier::kDisk;
}

std::string StoreFlags::NameOf(const std::string& name) {
  if (!IsUrl(name)) return name;
  const auto url = store::ParseRedisUrl(name);
  return url.ok() ? url->Name() : std::string("redis");
}

Result<std::unique_ptr<Store>> StoreFlags::Open(const std::string& name) const {
  if (IsUrl(name)) return OpenRedisStore({.url = name});
  if (name == kMemory) {
    KVCACHE_ASSIGN_OR_RETURN(auto store, MakeMemoryStore(plan().StoreBytes()));
    return std::unique_ptr<Store>(std::move(store));
  }
  return OpenDiskStore(DiskOptions(name));
}

Result<StoreStats> StoreFlags::CollectGarbage(const std::string& name) const {
  if (IsUrl(name) || name == kMemory) {
    return Unsupported(
        "only a directory has garbage to collect; a Redis server removes objects itself");
  }
  return kvcache::CollectGarbage(DiskOptions(name));
}

// Only a directory can be in another process' way.
Result<std::unique_ptr<Store>> StoreFlags::OpenLater(const std::string& name) const {
  if (TierOf(name) != StoreTier::kDisk) return Open(name);
  KVCACHE_ASSIGN_OR_RETURN(LateDiskStore late, OpenDiskStoreLater(DiskOptions(name)));
  if (!late.problem.ok()) Tell(late.problem.message());
  return std::move(late.store);
}

std::vector<StoreFlags::OpenStore> StoreFlags::OpenEach(Failed failed) const {
  std::vector<OpenStore> stores;
  for (const std::string& name : names()) {
    auto store = failed == Failed::kLater ? OpenLater(name) : Open(name);
    if (store.ok()) {
      stores.push_back({name, std::move(*store)});
    } else {
      Tell(store.status().message());
    }
  }
  return stores;
}

std::shared_ptr<Store> StoreFlags::Combine(const std::vector<OpenStore>& stores) {
  std::vector<std::shared_ptr<Store>> tiers;
  tiers.reserve(stores.size());
  for (const OpenStore& open : stores) tiers.push_back(open.store);
  if (tiers.empty()) return nullptr;
  if (tiers.size() == 1) return tiers.front();
  auto store = MakeTieredStore(std::move(tiers));
  if (store.ok()) return std::move(*store);
  Tell(store.status().message());
  return nullptr;
}

void StoreFlags::Use(Engine& engine, std::shared_ptr<Store> store) {
  if (store == nullptr) return;
  const Status status = engine.UseStore(std::move(store));
  if (!status.ok()) Tell(status.message());
}

void StoreFlags::Finish(Engine& engine) {
  if (const std::string problem = engine.FlushStore(); !problem.empty()) Tell(problem);
  const bool is_written = FlushPackedWeights(
      {.max_left_bytes = kMaxLeftBytes,
       .waits = [] { AddDetail("packed weights are being written; Ctrl-C gives them up"); },
       .cancelled = Interrupted});
  if (!is_written)
    AddDetail("packed weights are not kept: the command ended before they were written");
  NotesForTheEnd().Show();
}

}  // namespace kvcache::app
