// Short conversations with tools that a template is asked to write, to find how it writes them.
//
// Thread safety: free functions.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template/chat_format.h"
#include "dialect/dialect.h"

namespace kvcache::probe {

inline constexpr std::string_view kQuestion = "kvcachequestion";
inline constexpr std::string_view kAnswer = "kvcacheanswer";
inline constexpr std::string_view kThought = "kvcachethought";
inline constexpr std::array<std::string_view, 2> kNames = {"kvcache_first", "kvcache_second"};

// The parameters of each tool, and the arguments of a call.
nlohmann::ordered_json Parameters();
nlohmann::ordered_json Arguments(std::size_t index);
// The id of a call, as the template is to get it. Those of a dialect with numbers name the tool.
std::string IdOf(std::size_t index, std::string_view prefix, bool numbered);

// A message with calls. `ids`: of the calls.
nlohmann::ordered_json CallMessage(const std::vector<std::string>& ids, const HistoryForm& form);

// Renders messages behind a question. None: the template reports an error.
std::optional<std::string> Render(const ChatFormat& format, const HistoryForm& history,
                                  std::vector<nlohmann::ordered_json> messages,
                                  GenerationPrompt generation = GenerationPrompt::kOmit);

// Returns what stands behind the last mark; all of the text if it has none.
std::string Behind(const std::string& text, std::string_view mark);

// What stands around an answer of plain text.
struct Frame {
  std::string begin{}, end{};
};
Frame FrameOf(const ChatFormat& format, const HistoryForm& history);

// Finds where a template reads tools; none of its variables: ToolForm::kText.
ToolForm FindToolForm(const ChatFormat& format);

// A list of one call, with words that stand for its parts.
nlohmann::ordered_json ExampleCalls();
// Returns a call as a template writes it, with words that stand for its parts.
std::string ExampleOf(const ChatFormat& format, const HistoryForm& history);

}  // namespace kvcache::probe
