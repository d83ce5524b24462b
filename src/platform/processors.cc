#include "platform/processors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace kvcache {
namespace {

// Returns the first line of a file without its end; empty if there is none.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::vector<std::string> Words(const std::string& line) {
  std::istringstream words(line);
  return {std::istream_iterator<std::string>(words), {}};
}

// Returns whether `names`, separated by commas, include `name`.
bool Includes(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

// --- Cores

int CountCores(std::span<const int> allowed, const std::string& root) {
  std::set<std::string> cores;
  for (const int processor : allowed) {
    const std::string number = std::to_string(processor);
    std::string topology = root + "/sys/devices/system/cpu/cpu";
    topology.append(number).append("/topology/");
    std::string siblings = FirstLine(topology + "core_cpus_list");
    if (siblings.empty()) siblings = FirstLine(topology + "thread_siblings_list");  // before 5.10
    cores.insert(siblings.empty() ? number : siblings);
  }
  return static_cast<int>(cores.size());
}

// --- Quotas

enum class Version : std::uint8_t { kV1, kV2 };

// A mounted hierarchy of control groups that has the controller of processors.
struct Hierarchy {
  Version version = Version::kV2;
  std::string group;  // the folder of the hierarchy that is mounted
  std::string folder;
};

// A line of mountinfo: id, parent, device, root, mount point, options …, "-", type, source, options.
std::vector<Hierarchy> FindHierarchies(const std::string& root) {
  std::vector<Hierarchy> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = Words(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool v1 = dash[1] == "cgroup" && Includes(dash[3], "cpu");
    if (!v1 && dash[1] != "cgroup2") continue;
    found.push_back({v1 ? Version::kV1 : Version::kV2, words[3], root + words[4]});
  }
  return found;
}

// Returns the process's group in hierarchies of a version: the third field of its line in
// /proc/self/cgroup, "number:controllers:group". Version 2 has no controllers there.
std::optional<std::string> GroupOf(Version version, const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const bool matches =
        version == Version::kV2 ? controllers.empty() : Includes(controllers, "cpu");
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::optional<double> Ratio(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double part = std::strtod(quota.c_str(), &end);
  const bool is_number = end != quota.c_str();
  const double whole = std::strtod(period.c_str(), nullptr);
  // "max" in version 2 and -1 in version 1 mean that there is no quota.
  if (!is_number || !(part > 0.0) || !(whole > 0.0)) return std::nullopt;
  return part / whole;
}

std::optional<double> QuotaOfFolder(Version version, const std::string& folder) {
  if (version == Version::kV1) {
    return Ratio(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"));
  }
  const std::vector<std::string> words = Words(FirstLine(folder + "/cpu.max"));
  return words.size() == 2 ? Ratio(words[0], words[1]) : std::nullopt;
}

// Returns the least quota of a group and of the groups that contain it.
std::optional<double> QuotaOf(const Hierarchy& hierarchy, std::string group) {
  // A container sees its own group as the root of the mount. Its group's path may have the path of
  // the mounted folder in front, or may lie outside.
  if (hierarchy.group != "/") {
    const bool inside = group.starts_with(hierarchy.group);
    group = inside ? group.substr(hierarchy.group.size()) : "";
  }
  std::optional<double> least;
  for (;;) {
    while (group.ends_with('/')) group.pop_back();
    const std::optional<double> quota = QuotaOfFolder(hierarchy.version, hierarchy.folder + group);
    if (quota && (!least || *quota < *least)) least = quota;
    if (group.empty()) return least;
    const std::size_t parent = group.rfind('/');
    group.resize(parent == std::string::npos ? 0 : parent);
  }
}

std::optional<double> FindQuota(const std::string& root) {
  std::optional<double> least;
  for (const Hierarchy& hierarchy : FindHierarchies(root)) {
    const std::optional<std::string> group = GroupOf(hierarchy.version, root);
    if (!group) continue;
    const std::optional<double> quota = QuotaOf(hierarchy, *group);
    if (quota && (!least || *quota < *least)) least = quota;
  }
  return least;
}

int WithinQuota(int threads, const std::optional<double>& quota) {
  if (!quota || *quota >= threads) return threads;
  return std::max(1, static_cast<int>(std::floor(*quota)));
}

}  // namespace

int ProcessorLimits::AvailableProcessors() const {
  return WithinQuota(processors, quota);
}

int ProcessorLimits::DefaultThreads() const {
  return WithinQuota(cores, quota);
}

std::vector<int> AllowedProcessors() {
  std::vector<int> allowed;
#if defined(__linux__)
  // The call fails if the mask is smaller than the system's.
  constexpr int kMostProcessors = 1 << 18;
  for (int count = 1024; count <= kMostProcessors; count *= 4) {
    cpu_set_t* const set = CPU_ALLOC(count);
    if (set == nullptr) return allowed;
    const std::size_t size = CPU_ALLOC_SIZE(count);
    const bool done = sched_getaffinity(0, size, set) == 0;
    for (int i = 0; done && i < count; ++i) {
      if (CPU_ISSET_S(static_cast<std::size_t>(i), size, set)) allowed.push_back(i);
    }
    CPU_FREE(set);
    if (done) return allowed;
  }
#endif
  return allowed;
}

ProcessorLimits FindProcessorLimits(std::span<const int> allowed, const std::string& root) {
  const int processors = std::max(1, static_cast<int>(allowed.size()));
  return {processors, std::max(1, CountCores(allowed, root)), FindQuota(root)};
}

ProcessorLimits FindProcessorLimits() {
  const std::vector<int> allowed = AllowedProcessors();
  if (!allowed.empty()) return FindProcessorLimits(allowed);
  const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return {count, count, std::nullopt};
}

}  // namespace kvcache
