// Removes or moves lines that clients change on every call, such as clocks.
//
// A changed line ends the prefix that a prompt shares with those before it. An operator may name such lines in a
// file; then they are removed from conversations, or moved to their end, before the prompt is written:
//
//   # action  a line; each * stands for any text
//   remove x-anthropic-billing-header: *
//   move   Current time: *
//
// `remove` reads system messages, users' messages and results of tools. `move` reads system messages only: it
// appends their lines to the last message or result that is no answer; if there is none, they stay. Answers,
// reasoning and raw prompts stay as they are.
//
// Thread safety: const calls may run concurrently.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kvcache/status.h"
#include "server/request/fields.h"

namespace kvcache::server {

// Counts the lines of one request that were removed or moved.
struct VolatileCounts {
  std::int64_t removed = 0;
  std::int64_t moved = 0;
};

// What the field "prompt" of a request is: a text for the model as it is, or the message of a user.
enum class PromptUse : std::uint8_t { kRaw, kMessage };

class VolatileLines {
 public:
  // Has no rules: requests stay as they are.
  VolatileLines() = default;
  // Reads a file of at most 1 MiB. Errors: kIo; kInvalidArgument with the place and the rule.
  static Result<VolatileLines> Read(const std::string& path);
  // `place` names the text in errors.
  static Result<VolatileLines> Parse(std::string_view text, std::string_view place);

  bool empty() const { return rules_.empty(); }
  // Changes the conversation in the body of a request of any API: "system", "instructions", "messages",
  // "input", and "prompt" if it is a message. It changes nothing that has another form than the APIs say.
  VolatileCounts Apply(Json& body, PromptUse prompt_use = PromptUse::kRaw) const;

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

  std::vector<Rule> rules_;
};

// Returns whether a line has the form of a pattern, in which * stands for any text. Takes at most
// line × pattern steps.
bool MatchesPattern(std::string_view line, std::string_view pattern);

}  // namespace kvcache::server
