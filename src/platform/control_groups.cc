#include "platform/control_groups.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

namespace kvcache {
namespace {

constexpr std::string_view kUsualMount = "/sys/fs/cgroup";

struct Mount {
  ControlGroupVersion version;
  std::string group;  // the group whose folder is mounted
  std::string folder;
};

std::vector<std::string> FieldsOf(const std::string& line) {
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

// mountinfo writes a space, a tab, a newline and a backslash as \ and three octal digits.
std::string Unescaped(std::string_view text) {
  std::string plain;
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  while (!text.empty()) {
    const bool escape = text.size() >= 4 && text[0] == '\\' && text[1] <= '3' &&
                        std::all_of(text.begin() + 1, text.begin() + 4, is_octal);
    plain += escape ? static_cast<char>((text[1] - '0') * 64 + (text[2] - '0') * 8 + text[3] - '0')
                    : text[0];
    text.remove_prefix(escape ? 4 : 1);
  }
  return plain;
}

// A line of mountinfo: id, parent, device, root, mount point, options …, "-", type, source, options.
std::vector<Mount> FindMounts(std::string_view controller, const std::string& root) {
  std::vector<Mount> found;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.find(" - cgroup") == std::string::npos) continue;  // a machine may have thousands
    const std::vector<std::string> words = FieldsOf(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 5 || words.end() - dash < 4) continue;
    const bool v1 = dash[1] == "cgroup" && Includes(dash[3], controller);
    if (!v1 && dash[1] != "cgroup2") continue;
    found.push_back({v1 ? ControlGroupVersion::kV1 : ControlGroupVersion::kV2, Unescaped(words[3]),
                     root + Unescaped(words[4])});
  }
  return found;
}

// Returns the process's group in hierarchies of a version: the third field of its line in
// /proc/self/cgroup, "number:controllers:group". Version 2 has no controllers there.
std::optional<std::string> GroupOf(ControlGroupVersion version, std::string_view controller,
                                   const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const bool matches = version == ControlGroupVersion::kV2 ? controllers.empty()
                                                             : Includes(controllers, controller);
    if (matches) return line.substr(second + 1);
  }
  return std::nullopt;
}

// Returns whether a group leads out of the process's namespace of groups.
bool LeadsOut(std::string_view group) {
  return group.starts_with("/../") || group == "/.." || group.find("/../") != group.npos ||
         group.ends_with("/..");
}

// Returns the group's path below the mount point. A container sees its own group as the root of the
// mount. Its group's path may have the path of the mounted folder in front, or may lie outside.
std::string PathInMount(const Mount& mount, std::string group) {
  std::string_view mounted = mount.group;
  while (mounted.ends_with('/')) mounted.remove_suffix(1);
  if (!group.starts_with('/') || LeadsOut(group) || !group.starts_with(mounted)) return "";
  group.erase(0, mounted.size());
  return group.empty() || group.front() == '/' ? group : "";  // "/ab" is not in "/a"
}

std::vector<std::string> Folders(const Mount& mount, std::string group) {
  std::vector<std::string> folders;
  for (;;) {
    while (group.ends_with('/')) group.pop_back();
    folders.push_back(mount.folder + group);
    if (group.empty()) return folders;
    group.resize(group.rfind('/'));  // each begins with '/'
  }
}

}  // namespace

std::vector<ControlGroup> FindControlGroups(std::string_view controller, const std::string& root) {
  std::vector<Mount> mounts = FindMounts(controller, root);
  const auto add_usual = [&](ControlGroupVersion version, const std::string& folder) {
    for (const Mount& mount : mounts) {
      if (mount.version == version) return;
    }
    mounts.push_back({version, "/", root + std::string(kUsualMount) + folder});
  };
  add_usual(ControlGroupVersion::kV1, "/" + std::string(controller));
  add_usual(ControlGroupVersion::kV2, "");
  std::vector<ControlGroup> groups;
  for (const Mount& mount : mounts) {
    const std::optional<std::string> group = GroupOf(mount.version, controller, root);
    if (!group) continue;
    groups.push_back({mount.version, Folders(mount, PathInMount(mount, *group))});
  }
  return groups;
}

}  // namespace kvcache
