// Renders chat templates for tests. Reads one JSON object per line and prints one for each.
//
//   in   {"template": "...", "messages": [...], "tools": [...], "add_generation_prompt": true,
//         "variables": {...}, "bos": "<s>", "eos": "</s>", "now": [year, month, …, as in tm]}
//   out  {"text": "...", "foreign": [[begin, end], …],   ranges are in bytes
//        "seconds": 0.01}   the processor's time for the rendering, without parsing
//        {"error": "..."}

#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>

#include "chat_template/chat_template.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

// Sets `seconds` to the processor's time that the rendering takes, without parsing the template.
Result<ChatText> Render(const ordered_json& test, double& seconds) {
  KVCACHE_ASSIGN_OR_RETURN(const ChatTemplate parsed,
                           ChatTemplate::Parse(test.at("template").get<std::string>()));
  ChatInput input;
  input.messages = test.value("messages", ordered_json::array());
  input.tools = test.value("tools", ordered_json());
  input.variables = test.value("variables", ordered_json::object());
  input.bos = test.value("bos", "<s>");
  input.eos = test.value("eos", "</s>");
  input.generation_prompt =
      test.value("add_generation_prompt", true) ? GenerationPrompt::kAdd : GenerationPrompt::kOmit;
  std::tm now{};
  now.tm_year = 2024 - 1900;
  now.tm_mon = 6;
  now.tm_mday = 26;
  now.tm_hour = 9;
  now.tm_min = 5;
  now.tm_sec = 7;
  now.tm_wday = 5;
  now.tm_yday = 207;
  input.now = now;
  const std::clock_t begin = std::clock();
  auto rendered = parsed.Render(input);
  seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  return rendered;
}

ordered_json Answer(const std::string& line) {
  const ordered_json test = ordered_json::parse(line);
  double seconds = 0.0;
  const auto rendered = Render(test, seconds);
  if (!rendered.ok()) {
    return {{"error", rendered.status().message()},
            {"code", StatusCodeName(rendered.status().code())}};
  }
  ordered_json foreign = ordered_json::array();
  for (const TextRange& range : rendered->foreign) foreign.push_back({range.begin, range.end});
  return {{"text", rendered->text}, {"foreign", foreign}, {"seconds", seconds}};
}

}  // namespace
}  // namespace kvcache

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto answer = kvcache::Answer(line);
    std::cout << answer.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
  return 0;
}
