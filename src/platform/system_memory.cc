#include "platform/system_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/strings.h"

namespace kvcache {
namespace {

std::optional<std::int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;  // "max" is no number
  return std::nullopt;
}

// Returns the value of a line "name number", or 0.
std::int64_t NamedNumberIn(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::int64_t number = 0;
  while (file >> word >> number) {
    if (word == name) return number;
  }
  return 0;
}

std::optional<std::int64_t> SystemMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    std::int64_t kib = 0;
    if (words >> name >> kib && name == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

// Returns the path of the process's group of version 2, whose line begins with "0::".
std::string Group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "";
}

}  // namespace

std::optional<std::int64_t> AvailableMemory(const std::string& root) {
  std::optional<std::int64_t> least = SystemMemory(root);
  std::string group = Group(root);
  while (true) {
    while (group.ends_with('/')) group.pop_back();
    const std::string folder = StrCat(root, "/sys/fs/cgroup", group);
    const auto most = NumberIn(folder + "/memory.max");
    const auto used = NumberIn(folder + "/memory.current");
    if (most && used) {
      // The system takes pages of files back when the group needs memory.
      const std::string stat = folder + "/memory.stat";
      const std::int64_t files =
          NamedNumberIn(stat, "active_file") + NamedNumberIn(stat, "inactive_file");
      const std::int64_t left = std::clamp<std::int64_t>(*most - *used + files, 0, *most);
      least = least ? std::min(*least, left) : left;
    }
    if (group.empty()) return least;
    const std::size_t parent = group.rfind('/');
    group.resize(parent == std::string::npos ? 0 : parent);
  }
}

}  // namespace kvcache
