#include "cli/store_flags.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache::cli {
namespace {

constexpr const char* kNone = "none";

Status CheckStore(const std::string& value) {
  if (value.find("://") == std::string::npos && value.find(',') == std::string::npos) {
    return Status::Ok();
  }
  return InvalidArgument(Quoted(value) +
                         " is not a directory or 'none'; other stores do not exist yet");
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
      .AddText("--store", &store_,
               "directory that keeps evaluated prompts for later processes; 'none' keeps nothing "
               "(default: kvcache in the user's cache directory)")
      .Group(group)
      .ValueName("DIR")
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

std::string StoreFlags::directory() const {
  const std::string store = store_.empty() ? Variable("KVCACHE_STORE") : store_;
  if (store == kNone) return "";
  return store.empty() ? DefaultStoreDirectory() : store;
}

Result<std::unique_ptr<Store>> StoreFlags::Open() const {
  return OpenDiskStore({.directory = directory(), .budget_bytes = budget_bytes_});
}

Result<StoreStats> StoreFlags::CollectGarbage() const {
  return kvcache::CollectGarbage({.directory = directory(), .budget_bytes = budget_bytes_});
}

void StoreFlags::Use(Engine& engine) const {
  if (directory().empty() || engine.has_encoder()) return;
  auto store = Open();
  const Status status = store.ok() ? engine.UseStore(std::move(*store)) : store.status();
  if (!status.ok()) Say(status.message());
}

void StoreFlags::Finish(Engine& engine) {
  if (const std::string problem = engine.FlushStore(); !problem.empty()) Say(problem);
}

}  // namespace kvcache::cli
