// Finds the folders of the control groups that limit this process.
//
// Source: cgroups(7), cgroup_namespaces(7), proc(5) (cgroup, mountinfo).
//
// Thread safety: all functions may be called at the same time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache {

enum class ControlGroupVersion : std::uint8_t { kV1, kV2 };

// The process's group in one mounted hierarchy.
struct ControlGroup {
  ControlGroupVersion version = ControlGroupVersion::kV2;
  // The folder of the group itself, then the folders of the groups that contain it, up to the mount
  // point. A limit of any of them limits the process.
  std::vector<std::string> folders;
};

// Returns the process's groups in all hierarchies that may have the controller ("cpu", "memory"): those of
// version 1 that have it, and those of version 2. A system may have both. Reads /proc and /sys in the folder
// `root`. Without a mount of a version in /proc/self/mountinfo, the usual mount points are tried. A group
// that lies outside of what is mounted counts as the mounted folder. A folder need not exist.
std::vector<ControlGroup> FindControlGroups(std::string_view controller, const std::string& root);

}  // namespace kvcache
