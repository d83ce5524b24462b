#include "platform/processors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "platform/control_groups.h"

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

// --- Quotas

std::optional<double> Ratio(const std::string& quota, const std::string& period) {
  char* end = nullptr;
  const double part = std::strtod(quota.c_str(), &end);
  const bool is_number = end != quota.c_str();
  const double whole = std::strtod(period.c_str(), nullptr);
  // "max" in version 2 and -1 in version 1 mean that there is no quota.
  if (!is_number || !(part > 0.0) || !(whole > 0.0)) return std::nullopt;
  return part / whole;
}

std::optional<double> QuotaOfFolder(ControlGroupVersion version, const std::string& folder) {
  if (version == ControlGroupVersion::kV1) {
    return Ratio(FirstLine(folder + "/cpu.cfs_quota_us"), FirstLine(folder + "/cpu.cfs_period_us"));
  }
  const std::vector<std::string> words = Words(FirstLine(folder + "/cpu.max"));
  return words.size() == 2 ? Ratio(words[0], words[1]) : std::nullopt;
}

std::optional<double> FindQuota(const std::string& root) {
  std::optional<double> min;
  for (const ControlGroup& group : FindControlGroups("cpu", root)) {
    for (const std::string& folder : group.folders) {
      const std::optional<double> quota = QuotaOfFolder(group.version, folder);
      if (quota && (!min || *quota < *min)) min = quota;
    }
  }
  return min;
}

int WithinQuota(int threads, const std::optional<double>& quota) {
  if (!quota || *quota >= threads) return threads;
  return std::max(1, static_cast<int>(std::floor(*quota)));
}

}  // namespace

int CountCores(std::span<const int> processors, const std::string& root) {
  std::set<std::string> cores;
  for (const int processor : processors) {
    const std::string number = std::to_string(processor);
    std::string topology = root + "/sys/devices/system/cpu/cpu";
    topology.append(number).append("/topology/");
    std::string siblings = FirstLine(topology + "core_cpus_list");
    if (siblings.empty()) siblings = FirstLine(topology + "thread_siblings_list");  // before 5.10
    cores.insert(siblings.empty() ? number : siblings);
  }
  return static_cast<int>(cores.size());
}

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
  constexpr int kMaxProcessors = 1 << 18;
  for (int count = 1024; count <= kMaxProcessors; count *= 4) {
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
