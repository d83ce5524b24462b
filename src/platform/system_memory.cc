#include "platform/system_memory.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

#include "base/strings.h"
#include "platform/control_groups.h"

namespace kvcache {
namespace {

// Version 1 writes a number near 2^63 where there is no limit.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;

// Returns a count of bytes; none for "max", for a number that is none, and for what is no limit.
std::optional<std::int64_t> BytesOf(std::string_view word) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return number >= 0 && number < kNoLimit ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> BytesIn(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  return file >> word ? BytesOf(word) : std::nullopt;
}

std::optional<std::int64_t> Min(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

// The lines "name number" of memory.stat.
class Counts {
 public:
  explicit Counts(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name, number;
      if (!(words >> name >> number)) continue;
      if (const auto bytes = BytesOf(number)) counts_[name] = *bytes;
    }
  }

  std::optional<std::int64_t> Find(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::int64_t FindOr0(const std::string& name) const { return Find(name).value_or(0); }

 private:
  std::map<std::string, std::int64_t> counts_;
};

std::optional<std::int64_t> SystemMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name, number;
    if (!(words >> name >> number) || name != "MemAvailable:") continue;
    const auto kib = BytesOf(number);
    if (kib && *kib < kNoLimit / 1024) return *kib * 1024;
  }
  return std::nullopt;
}

// Returns what a limit leaves. The system takes pages of files back when a group needs memory.
std::optional<std::int64_t> Left(std::optional<std::int64_t> limit,
                                 std::optional<std::int64_t> used, std::int64_t files) {
  if (!limit) return std::nullopt;
  const std::int64_t taken = used.value_or(0) - std::min(files, used.value_or(0));
  return std::max<std::int64_t>(*limit - taken, 0);
}

std::optional<std::int64_t> LeftInV2(const std::string& folder) {
  const Counts counts(folder + "/memory.stat");
  const std::int64_t files = counts.FindOr0("active_file") + counts.FindOr0("inactive_file");
  // Above memory.high the system slows the process down until it hardly runs.
  const auto limit = Min(BytesIn(folder + "/memory.max"), BytesIn(folder + "/memory.high"));
  return Left(limit, BytesIn(folder + "/memory.current"), files);
}

// Each file counts the groups inside too; in memory.stat, those are the numbers named total_.
// hierarchical_ are the least limits of the group and of those that contain it, also of those that
// a container does not see.
std::optional<std::int64_t> LeftInV1(const std::string& folder) {
  const Counts counts(folder + "/memory.stat");
  const auto total = [&](const std::string& name) {
    return counts.Find("total_" + name).value_or(counts.FindOr0(name));
  };
  const std::int64_t files = total("active_file") + total("inactive_file");
  const auto left = [&](const std::string& name, const std::string& hierarchical) {
    const auto limit =
        Min(BytesIn(StrCat(folder, "/memory.", name, "limit_in_bytes")), counts.Find(hierarchical));
    return Left(limit, BytesIn(StrCat(folder, "/memory.", name, "usage_in_bytes")), files);
  };
  // The second is memory with swap; the limit may be the same.
  return Min(left("", "hierarchical_memory_limit"), left("memsw.", "hierarchical_memsw_limit"));
}

// Before Linux 5.11, a group of version 1 may be set to count no groups inside of it.
bool CountsGroupsInside(const std::string& folder) {
  return BytesIn(folder + "/memory.use_hierarchy").value_or(1) != 0;
}

std::optional<std::int64_t> LeftIn(const ControlGroup& group) {
  std::optional<std::int64_t> min;
  for (std::size_t i = 0; i < group.folders.size(); ++i) {
    const std::string& folder = group.folders[i];
    const bool v1 = group.version == ControlGroupVersion::kV1;
    if (v1 && i > 0 && !CountsGroupsInside(folder)) break;
    min = Min(min, v1 ? LeftInV1(folder) : LeftInV2(folder));
  }
  return min;
}

std::atomic<std::int64_t> needed_file_bytes{0};

}  // namespace

NeededFilePages::NeededFilePages(std::int64_t bytes) : bytes_(bytes) {
  needed_file_bytes.fetch_add(bytes_);
}

NeededFilePages::~NeededFilePages() {
  needed_file_bytes.fetch_sub(bytes_);
}

std::optional<std::int64_t> AvailableMemory(const std::string& root) {
  std::optional<std::int64_t> min = SystemMemory(root);
  for (const ControlGroup& group : FindControlGroups("memory", root)) {
    min = Min(min, LeftIn(group));
  }
  if (min) min = std::max<std::int64_t>(*min - needed_file_bytes.load(), 0);
  return min;
}

}  // namespace kvcache
