// Lines that clients change on every call, such as clocks, and what becomes of them.
//
// A changed line ends the prefix that a prompt shares with those before it. An operator may name such lines in a
// file; then they are removed from conversations, or moved to their end, before the prompt is written:
//
//   # action  a line; each * stands for any text
//   remove x-anthropic-billing-header: *
//   move   Current time: *
//
// `remove` reads system messages, users' messages and results of tools. `move` reads system messages only: their
// lines go to the end of the last message. Answers and raw prompts stay as they are.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "server/fields.h"

namespace kvcache::server {

// Lines of one request.
struct VolatileCounts {
  std::int64_t removed = 0;
  std::int64_t moved = 0;
};

class VolatileLines {
 public:
  // None.
  VolatileLines() = default;
  // Reads a file of at most 1 MiB. Errors: kIo; kInvalidArgument with the place and the rule.
  static Result<VolatileLines> Read(const std::string& path);
  // `place` names the text in errors.
  static Result<VolatileLines> Parse(std::string_view text, std::string_view place);

  bool empty() const { return rules_.empty(); }
  // Changes the conversation in the body of a request of any API: "system", "instructions", "messages" and
  // "input". What has another form than the APIs say stays as it is.
  VolatileCounts Apply(Json& body) const;

 private:
  enum class Action : std::uint8_t { kRemove, kMove };
  struct Rule {
    Action action{};
    std::string pattern{};
  };

  // Takes the lines out of a text. Returns whether nothing else was in it. `moved` is null where lines are
  // only removed.
  bool TakeFrom(std::string& text, std::vector<std::string>* moved, VolatileCounts& counts) const;
  // The same for a content: a text, or an array of parts, of which those that become empty go.
  void TakeFromContent(Json& content, std::vector<std::string>* moved,
                       VolatileCounts& counts) const;
  void TakeFromMessage(Json& message, std::vector<std::string>& moved,
                       VolatileCounts& counts) const;

  std::vector<Rule> rules_;
};

// Returns whether a line has the form of a pattern, in which * stands for any text. Takes at most
// line × pattern steps.
bool MatchesPattern(std::string_view line, std::string_view pattern);

}  // namespace kvcache::server
