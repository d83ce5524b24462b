#include "tokenizer/unigram/byte_trie.h"

#include <algorithm>
#include <deque>

namespace kvcache {

// Places children in the newest few blocks that have free units. Older blocks stay unchanged.
class ByteTrie::Builder {
 public:
  using Texts = std::vector<std::pair<std::string, std::int32_t>>;

  Builder(const Texts& texts, ByteTrie* trie) : texts_(texts), trie_(*trie) {}

  void Run() {
    is_place_.resize(kBlock, true);  // the first block is reserved for nodes without children
    std::vector<Task> tasks = {{kRoot, 0, texts_.size(), 0}};
    while (!tasks.empty()) {
      const Task task = tasks.back();
      tasks.pop_back();
      Place(task, &tasks);
    }
  }

 private:
  struct Child {
    std::uint32_t label;
    std::size_t first;
    std::size_t last;
  };

  static std::uint32_t LabelAt(const std::string& text, std::size_t depth) {
    return std::uint32_t{static_cast<std::uint8_t>(text[depth])} + 1;
  }

  void Place(const Task& task, std::vector<Task>* tasks) {
    std::size_t first = task.first;
    // Texts are sorted: the one that ends here, if any, comes first.
    if (first < task.last && texts_[first].first.size() == task.depth) {
      SetToken(task.unit, texts_[first++].second);
    }
    children_.clear();
    while (first < task.last) {
      const std::uint32_t label = LabelAt(texts_[first].first, task.depth);
      std::size_t last = first + 1;
      while (last < task.last && LabelAt(texts_[last].first, task.depth) == label) ++last;
      children_.push_back({label, first, last});
      first = last;
    }
    if (children_.empty()) return;
    const std::uint32_t place = FindPlace();
    is_place_[place] = true;
    (task.unit == kRoot ? trie_.root_ : trie_.units_[task.unit].children) = place;
    for (const Child& child : children_) {
      trie_.units_[place ^ child.label].info = child.label;
      tasks->push_back({place ^ child.label, child.first, child.last, task.depth + 1});
    }
  }

  void SetToken(std::uint32_t unit, std::int32_t token) {
    if (unit == kRoot) return;
    trie_.units_[unit].info |= static_cast<std::uint32_t>(token + 1) << kLabelBits;
  }

  std::uint32_t FindPlace() {
    for (std::size_t i = 0; i < open_.size(); ++i) {
      if (const std::uint32_t place = PlaceIn(open_[i]); place != 0) return place;
      if (++open_[i].failures == kMaxFailures) {
        open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i--));
      }
    }
    if (open_.size() == kMaxOpenBlocks) open_.pop_front();
    open_.push_back({static_cast<std::uint32_t>(trie_.units_.size()), 0, 0});
    trie_.units_.resize(trie_.units_.size() + kBlock);
    is_place_.resize(trie_.units_.size());
    return PlaceIn(open_.back());
  }

  struct Block {
    std::uint32_t begin;
    std::uint32_t free_from;  // no unit before it is free
    int failures;
  };

  bool IsFree(std::uint32_t unit) const { return trie_.units_[unit].info == 0; }

  // Returns a place in the block where all children fit; 0 if there is none.
  std::uint32_t PlaceIn(Block& block) {
    while (block.free_from < kBlock && !IsFree(block.begin + block.free_from)) ++block.free_from;
    for (std::uint32_t i = block.free_from; i < kBlock; ++i) {
      const std::uint32_t place = (block.begin + i) ^ children_.front().label;
      if (!IsFree(block.begin + i) || is_place_[place]) continue;
      const bool fits = std::all_of(children_.begin(), children_.end(), [&](const Child& child) {
        return IsFree(place ^ child.label);
      });
      if (fits) return place;
    }
    return 0;
  }

  static constexpr std::size_t kMaxOpenBlocks = 8;
  static constexpr int kMaxFailures = 32;

  const Texts& texts_;
  ByteTrie& trie_;
  std::vector<Child> children_;
  std::vector<bool> is_place_;
  std::deque<Block> open_;
};

ByteTrie::ByteTrie(std::vector<std::pair<std::string, std::int32_t>> texts) {
  std::sort(texts.begin(), texts.end());
  Builder(texts, this).Run();
}

}  // namespace kvcache
