#include "grammar/text/pattern_program.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/errors.h"
#include "base/strings.h"

namespace kvcache {
namespace {

using Step = PatternProgram::Step;

class PatternCompiler {
 public:
  explicit PatternCompiler(const PatternTree& tree) : tree_(tree) {}

  Result<PatternProgram> Compile() {
    program_.sets = tree_.sets;
    const std::int32_t accept = Add({.step = Step::kAccept});
    program_.start = Build(tree_.root, accept);
    if (!BeginsAtStart(tree_.root)) AddAnyBefore();
    if (IsTooLarge()) {
      return InvalidArgument(StrCat("has more than ", PatternProgram::kMaxNodes,
                                    " characters when its repetitions are written out"));
    }
    FindDistances();
    program_.may_be_stuck = MayBeStuck();
    return std::move(program_);
  }

 private:
  using Node = PatternProgram::Node;

  bool IsTooLarge() const { return program_.nodes.size() > PatternProgram::kMaxNodes; }
  std::int32_t Add(const Node& node) {
    program_.nodes.push_back(node);
    return static_cast<std::int32_t>(program_.nodes.size()) - 1;
  }
  Node& NodeAt(std::int32_t node) { return program_.nodes[static_cast<std::size_t>(node)]; }
  const PatternTree::Node& TreeNode(std::int32_t node) const {
    return tree_.nodes[static_cast<std::size_t>(node)];
  }

  // Returns the first node of a part of the tree; `next` follows it.
  std::int32_t Build(std::int32_t index, std::int32_t next) {
    if (IsTooLarge()) return next;
    const PatternTree::Node& node = TreeNode(index);
    switch (node.kind) {
      case PatternKind::kSequence:
        for (auto child = node.children.rbegin(); child != node.children.rend(); ++child) {
          next = Build(*child, next);
        }
        return next;
      case PatternKind::kAlternatives: return BuildAlternatives(node, next);
      case PatternKind::kSet: return Add({.step = Step::kSet, .next = next, .set = node.set});
      case PatternKind::kRepeat: return BuildRepeat(node, next);
      case PatternKind::kBegin: return Add({.step = Step::kBegin, .next = next});
      case PatternKind::kEnd: return Add({.step = Step::kEnd, .next = next});
      case PatternKind::kBoundary:
      case PatternKind::kNoBoundary: {
        program_.has_boundaries = true;
        const bool is_not = node.kind == PatternKind::kNoBoundary;
        return Add({.step = is_not ? Step::kNoBoundary : Step::kBoundary, .next = next});
      }
      case PatternKind::kLookahead:
      case PatternKind::kNoLookahead: {
        program_.has_looks = true;
        const std::int32_t body = Build(node.children[0], Add({.step = Step::kAccept}));
        const bool is_not = node.kind == PatternKind::kNoLookahead;
        return Add({.step = is_not ? Step::kNoLook : Step::kLook, .next = next, .other = body});
      }
    }
    return next;
  }

  std::int32_t BuildAlternatives(const PatternTree::Node& node, std::int32_t next) {
    std::int32_t all = Build(node.children.back(), next);
    for (std::size_t i = node.children.size() - 1; i-- > 0 && !IsTooLarge();) {
      const std::int32_t one = Build(node.children[i], next);
      all = Add({.step = Step::kFork, .next = one, .other = all});
    }
    return all;
  }

  std::int32_t BuildRepeat(const PatternTree::Node& node, std::int32_t next) {
    const std::int32_t child = node.children[0];
    std::int32_t first = next;
    if (node.max < 0) {
      first = Add({.step = Step::kFork, .next = next, .other = next});
      const std::int32_t body = Build(child, first);
      NodeAt(first).next = body;
    }
    for (std::int64_t i = node.min; i < node.max && !IsTooLarge(); ++i) {
      const std::int32_t body = Build(child, first);
      first = Add({.step = Step::kFork, .next = body, .other = next});
    }
    for (std::int64_t i = 0; i < node.min && !IsTooLarge(); ++i) first = Build(child, first);
    return first;
  }

  // Returns whether a part matches at the beginning only.
  bool BeginsAtStart(std::int32_t index) const {
    const PatternTree::Node& node = TreeNode(index);
    const auto begins = [this](std::int32_t child) { return BeginsAtStart(child); };
    if (node.kind == PatternKind::kBegin) return true;
    if (node.kind == PatternKind::kAlternatives) {
      return std::all_of(node.children.begin(), node.children.end(), begins);
    }
    return node.kind == PatternKind::kSequence && !node.children.empty() &&
           begins(node.children[0]);
  }

  void AddAnyBefore() {
    program_.sets.push_back(CodePointSet::All());
    const auto all = static_cast<std::int32_t>(program_.sets.size()) - 1;
    const std::int32_t fork = Add({.step = Step::kFork, .next = 0, .other = program_.start});
    const std::int32_t any = Add({.step = Step::kSet, .next = fork, .set = all});
    NodeAt(fork).next = any;
    program_.start = fork;
  }

  // Searches breadth first from the ends backwards; only characters count. A path never passes a '^' that always
  // follows a character, and never goes from a '$' to a character.
  void FindDistances() {
    const std::size_t count = program_.nodes.size();
    std::vector<std::vector<std::int32_t>> before(count);
    std::deque<std::int32_t> open;
    program_.distance.assign(count, PatternProgram::kNever);
    std::vector<char> at_start(count, 0);
    Mark(program_.start, at_start);
    for (std::size_t i = 0; i < count; ++i) {
      const Node& node = program_.nodes[i];
      const auto index = static_cast<std::int32_t>(i);
      if (node.step == Step::kAccept) {
        program_.distance[i] = 0;
        open.push_back(index);
        continue;
      }
      if (node.step == Step::kSet && program_.sets[static_cast<std::size_t>(node.set)].empty()) {
        continue;
      }
      if (node.step == Step::kBegin && at_start[i] == 0) continue;
      before[static_cast<std::size_t>(node.next)].push_back(index);
      if (node.step == Step::kFork) before[static_cast<std::size_t>(node.other)].push_back(index);
    }
    while (!open.empty()) {
      const std::int32_t at = open.front();
      open.pop_front();
      for (const std::int32_t one : before[static_cast<std::size_t>(at)]) {
        const bool is_character = NodeAt(one).step == Step::kSet;
        const std::int32_t length =
            program_.distance[static_cast<std::size_t>(at)] + (is_character ? 1 : 0);
        std::int32_t& known = program_.distance[static_cast<std::size_t>(one)];
        if (length >= known || (NodeAt(one).step == Step::kEnd && length > 0)) continue;
        known = length;
        is_character ? open.push_back(one) : open.push_front(one);
      }
    }
  }

  bool MayBeStuck() {
    if (program_.has_looks || program_.has_boundaries) return true;
    std::vector<char> behind_character(program_.nodes.size(), 0);
    std::vector<char> behind_end(program_.nodes.size(), 0);
    for (const Node& node : program_.nodes) {
      if (node.step == Step::kSet) Mark(node.next, behind_character);
      if (node.step == Step::kEnd) Mark(node.next, behind_end);
    }
    for (std::size_t i = 0; i < program_.nodes.size(); ++i) {
      if (program_.distance[i] == PatternProgram::kNever) return true;
      if (behind_character[i] != 0 && program_.nodes[i].step == Step::kBegin) return true;
      if (behind_end[i] != 0 && program_.nodes[i].step == Step::kSet) return true;
    }
    return false;
  }

  // Marks a node and those that follow without a character.
  void Mark(std::int32_t node, std::vector<char>& marks) {
    std::vector<std::int32_t> open = {node};
    while (!open.empty()) {
      const std::int32_t at = open.back();
      open.pop_back();
      if (std::exchange(marks[static_cast<std::size_t>(at)], 1) != 0) continue;
      const Node& one = NodeAt(at);
      if (one.step == Step::kSet || one.step == Step::kAccept) continue;
      open.push_back(one.next);
      if (one.step == Step::kFork || one.step == Step::kLook || one.step == Step::kNoLook) {
        open.push_back(one.other);
      }
    }
  }

  const PatternTree& tree_;
  PatternProgram program_;
};

}  // namespace

Result<PatternProgram> CompilePattern(const PatternTree& tree) {
  return PatternCompiler(tree).Compile();
}

}  // namespace kvcache
