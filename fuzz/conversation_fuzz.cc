// Reads any bytes as a saved conversation, a file of tools or a variable. Checks that they are read
// or refused without a crash, and that a conversation that was read is written in bounded size and
// read back equal.
//
//   input   a byte that selects one of the three, then the text
#include <string>
#include <string_view>

#include "chat_template/chat_template.h"
#include "engine/chat/conversation_text.h"
#include "fuzz_input.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;

void CheckRefused(const Status& status) {
  Check(!status.ok() && !status.message().empty());
}

// Returns a template that prints all its input.
const ChatTemplate& ShowAll() {
  static const ChatTemplate all =
      std::move(ChatTemplate::Parse("{{ messages | tojson }}{{ tools | tojson }}"
                                    "{% for m in messages %}{{ m.content }}"
                                    "{% endfor %}{{ x }}"))
          .value();
  return all;
}

void FuzzConversation(std::string_view text) {
  ChatInput input;
  const Status status = ReadConversation(text, input);
  if (!status.ok()) {
    CheckRefused(status);
    Check(input.messages.empty() && input.tools.is_null() && input.variables.empty());
    return;
  }
  const std::string written = ConversationText(input);
  // A byte may become six: "\u0001" for a control character.
  Check(written.size() <= 6 * text.size() + 200);
  ChatInput again;
  Check(ReadConversation(written, again).ok());
  Check(again.messages == input.messages && again.tools == input.tools &&
        again.variables == input.variables);
  Check(ConversationText(again) == written);
  const auto shown = ShowAll().Render(input, {.work = 1 << 20, .seconds = 0.0});
  Check(shown.ok() || !shown.status().message().empty());
}

void FuzzTools(std::string_view text) {
  const auto tools = ReadTools(text);
  if (!tools.ok()) return CheckRefused(tools.status());
  Check(tools->is_array());
  for (const ordered_json& tool : *tools) Check(tool.is_object());
}

void FuzzVariable(std::string_view text) {
  const auto value = ParseJson(text);
  if (!value.ok()) return CheckRefused(value.status());
  ChatInput input;
  input.variables["x"] = *value;
  const auto shown = ShowAll().Render(input, {.work = 1 << 20, .seconds = 0.0});
  Check(shown.ok() || !shown.status().message().empty());
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace kvcache;
  std::string_view text(reinterpret_cast<const char*>(bytes), size);
  switch (TakeByte(&text) % 3) {
    case 0: FuzzConversation(text); break;
    case 1: FuzzTools(text); break;
    default: FuzzVariable(text); break;
  }
  return 0;
}
