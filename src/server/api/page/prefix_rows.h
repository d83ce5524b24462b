// Makes rows for people out of the nodes of a trie of prefixes.
//
// A node is an edge between two places where prompts fork or can be restored. People look for forks, so
//
//   ─ a node and the only one that goes on from it are one row, whose parts are the nodes;
//   ─ an inner node of one token has no row: those that go on from it begin with its token.
//
//      <s> ─┬─ Tell me a ─── story ─┬─ about        1  <s> Tell me a story      parts: "<s> Tell me a", "story"
//           │                       └─ now     →    2      about
//           └─ Once                                 3      now
//                                                   4  <s> Once
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "kvcache/prefix_cache.h"

namespace kvcache::server::page {

struct PrefixRow {
  struct Part {
    Position end = 0;
    bool has_state = false;  // prompts can be restored at its end
  };

  std::uint64_t number = 0;  // of its first node
  std::uint64_t parent = 0;  // the row that it goes on from; 0: none
  Position begin = 0;
  Position end = 0;
  std::vector<Part> parts{};       // the first and the last of a long list
  std::int32_t requests = 0;       // that go on from one of its nodes
  bool pinned = false;             // one of its nodes is
  std::vector<PrefixKey> first{};  // keys, all if they are few
  std::vector<PrefixKey> last{};   // keys at the end, if they are not in `first`
};

class PrefixRows {
 public:
  static constexpr std::size_t kShownKeys = 40;  // of a row, at each end
  static constexpr std::size_t kMaxParts = 32;   // of a row
  static constexpr std::size_t kMaxFolded = 8;   // nodes of one token, one after the other

  struct Limits {
    std::size_t rows = std::numeric_limits<std::size_t>::max();
    std::size_t nodes = std::numeric_limits<std::size_t>::max();
  };
  explicit PrefixRows(Limits limits) : limits_(limits) {}

  // Takes the next node in the order of PrefixCache::Visit. Returns false, and does not take it, if a limit is reached.
  bool Add(const PrefixNodeView& node);

  const std::vector<PrefixRow>& rows() const { return rows_; }
  // Returns whether all nodes were taken.
  bool all() const { return all_; }

 private:
  // How the nodes below a node go on.
  struct Place {
    std::uint64_t parent = 0;         // row
    Position begin = 0;               // of their rows
    std::vector<PrefixKey> folded{};  // keys that their rows begin with
    bool joins = false;               // the node goes on in the last row
  };

  static bool IsFolded(const PrefixNodeView& node, const Place& place);
  static void Append(std::span<const PrefixKey> keys, PrefixRow& row);
  void Extend(const PrefixNodeView& node, PrefixRow& row);

  const Limits limits_;
  std::vector<PrefixRow> rows_;
  std::unordered_map<std::uint64_t, Place>
      places_;  // by the number of a node that has others below it
  std::size_t nodes_ = 0;
  bool all_ = true;
};

// Returns the keys [from, from + most) of the row that begins with this node, counted from the row's beginning, and the
// row's length. Not found: the length is 0.
struct RowKeys {
  std::vector<PrefixKey> keys{};
  Position length = 0;
};
RowKeys KeysOfRow(const PrefixCache& prefixes, std::uint64_t salt, std::uint64_t number,
                  Position from, Position max);

}  // namespace kvcache::server::page
