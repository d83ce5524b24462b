#include "platform/numa/memory_nodes.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>

#include "base/strings.h"
#include "platform/processors.h"

namespace kvcache {
namespace {

constexpr int kMaxNumber = 1 << 18;

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (number < 0 || number > kMaxNumber) return std::nullopt;
  return number;
}

std::string FolderOf(const std::string& root, int node) {
  return StrCat(root, "/sys/devices/system/node/node", node);
}

// Returns whether a node has memory at all. A file that is missing says nothing against it.
bool HasMemory(const std::string& folder) {
  std::ifstream file(folder + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string node, number, name;
    std::int64_t kilobytes = 0;
    if (words >> node >> number >> name >> kilobytes && name == "MemTotal:") return kilobytes > 0;
  }
  return true;
}

// Returns the nodes whose memory the process's cpuset allows; none: all.
std::optional<std::vector<int>> AllowedMemory(const std::string& root) {
  constexpr std::string_view kName = "Mems_allowed_list:";
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kName))
      return ParseNumberList(std::string_view(line).substr(kName.size()));
  }
  return std::nullopt;
}

// A node as the system describes it.
struct SystemNode {
  int id = 0;
  std::vector<int> processors;  // allowed ones
  bool has_memory = false;
  std::vector<int> distances;  // to all nodes that are online, in ascending order
};

std::vector<SystemNode> ReadNodes(std::span<const int> allowed, const std::string& root) {
  std::vector<SystemNode> nodes;
  const auto online = ParseNumberList(FirstLineOf(root + "/sys/devices/system/node/online"));
  if (!online) return nodes;
  const auto memory = AllowedMemory(root);
  for (const int id : *online) {
    const std::string folder = FolderOf(root, id);
    SystemNode node{.id = id, .processors = {}, .distances = {}};
    for (const int processor :
         ParseNumberList(FirstLineOf(folder + "/cpulist")).value_or(std::vector<int>())) {
      if (std::ranges::find(allowed, processor) != allowed.end())
        node.processors.push_back(processor);
    }
    node.has_memory =
        (!memory || std::ranges::find(*memory, id) != memory->end()) && HasMemory(folder);
    std::istringstream words(FirstLineOf(folder + "/distance"));
    node.distances.assign(std::istream_iterator<int>(words), {});
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// Returns the index of the node with memory that is nearest to node `from`.
std::optional<std::size_t> HomeOf(std::span<const SystemNode> nodes, std::size_t from) {
  std::optional<std::size_t> home;
  const auto distance = [&](std::size_t to) {
    const std::vector<int>& all = nodes[from].distances;
    if (to == from) return 0;
    return to < all.size() ? all[to] : kMaxNumber;
  };
  for (std::size_t to = 0; to < nodes.size(); ++to) {
    if (nodes[to].has_memory && (!home || distance(to) < distance(*home))) home = to;
  }
  return home;
}

void MergeNeighbors(std::vector<MemoryNode>& nodes) {
  std::vector<MemoryNode> merged;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i % 2 == 0) {
      merged.push_back(std::move(nodes[i]));
      continue;
    }
    std::vector<int>& processors = merged.back().processors;
    merged.back().is_merged = true;
    processors.insert(processors.end(), nodes[i].processors.begin(), nodes[i].processors.end());
  }
  nodes = std::move(merged);
}

}  // namespace

std::optional<std::vector<int>> ParseNumberList(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  std::vector<int> numbers;
  while (!text.empty()) {
    const std::string_view range = text.substr(0, text.find(','));
    if (range.size() + 1 == text.size()) return std::nullopt;  // a comma at the end
    text.remove_prefix(std::min(text.size(), range.size() + 1));
    const std::size_t dash = range.find('-');
    const auto first = NumberOf(range.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : NumberOf(range.substr(dash + 1));
    if (!first || !last || *last < *first) return std::nullopt;
    for (int number = *first; number <= *last; ++number) numbers.push_back(number);
    if (numbers.size() > kMaxNumber) return std::nullopt;
  }
  return numbers;
}

std::vector<MemoryNode> FindMemoryNodes(std::span<const int> allowed, const std::string& root) {
  const std::vector<SystemNode> nodes = ReadNodes(allowed, root);
  std::map<int, std::vector<int>> homes;
  std::vector<int> homeless(allowed.begin(), allowed.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const auto home = HomeOf(nodes, i);
    if (!home || nodes[i].processors.empty()) continue;
    std::vector<int>& processors = homes[nodes[*home].id];
    processors.insert(processors.end(), nodes[i].processors.begin(), nodes[i].processors.end());
    std::erase_if(homeless, [&](int processor) {
      return std::ranges::find(nodes[i].processors, processor) != nodes[i].processors.end();
    });
  }
  if (homes.empty()) return {};
  std::vector<int>& first = homes.begin()->second;
  first.insert(first.end(), homeless.begin(), homeless.end());
  std::vector<MemoryNode> found;
  for (auto& [id, processors] : homes)
    found.push_back({.id = id, .processors = std::move(processors)});
  while (found.size() > kMaxMemoryNodes) MergeNeighbors(found);
  for (MemoryNode& node : found) {
    std::ranges::sort(node.processors);
    node.cores = CountCores(node.processors, root);
  }
  return found;
}

std::vector<NodeThreads> SpreadThreads(std::span<const MemoryNode> nodes, int threads) {
  std::int64_t cores = 0;
  std::int64_t processors = 0;
  for (const MemoryNode& node : nodes) {
    cores += node.cores;
    processors += static_cast<std::int64_t>(node.processors.size());
  }
  const bool by_core = threads <= cores;
  const std::int64_t all = by_core ? cores : processors;
  std::vector<NodeThreads> spread;
  std::int64_t seen = 0;
  std::int64_t given = 0;
  for (const MemoryNode& node : nodes) {
    seen += by_core ? node.cores : static_cast<std::int64_t>(node.processors.size());
    // Rounded sums instead of shares: the differences add up to `threads`.
    const std::int64_t until = (2 * threads * seen + all) / (2 * all);
    if (until > given) {
      spread.push_back({.node = node.id,
                        .processors = node.processors,
                        .threads = static_cast<int>(until - given),
                        .is_merged = node.is_merged});
    }
    given = until;
  }
  return spread;
}

}  // namespace kvcache
