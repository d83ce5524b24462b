// Divides any text as an answer in any dialect. Checks that the parts, put together, are the same however the text is
// cut into pieces, and that they are whole: calls begin and end, their arguments are objects, and no part is empty.
//
//   input   a byte that selects the dialect, one with flags, one that seeds the cuts, then the text. Bytes 1 and 2 stand
//           for the markers of the dialect: the byte behind them selects one.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "dialect/answer_parser.h"
#include "fuzz_input.h"

namespace kvcache {
namespace {

using nlohmann::ordered_json;
using Kind = AnswerPart::Kind;

constexpr std::size_t kLongest = 4096;

AnswerSyntax SyntaxOf(const Dialect& dialect, std::uint8_t flags) {
  const ordered_json parameters = {
      {"properties", {{"s", {{"type", "string"}}}, {"n", {{"type", "integer"}}}}}};
  return {.dialect = std::make_shared<const Dialect>(dialect),
          .reasoning = (flags & 1) != 0,
          .opens_reasoning = (flags & 2) != 0,
          .calls = (flags & 4) == 0,
          .tools = {{.name = "f", .parameters = parameters}, {.name = "ff", .parameters = {}}},
          .one_call = (flags & 8) != 0};
}

std::vector<std::string> MarkersOf(const Dialect& dialect) {
  const CallSyntax& calls = dialect.calls;
  return {dialect.thoughts.begin,
          dialect.thoughts.end,
          dialect.text_begin,
          dialect.text_end,
          calls.section_begin,
          calls.section_end,
          calls.call_begin,
          calls.call_end,
          calls.name_end,
          calls.id_begin,
          calls.parameter_begin,
          calls.parameter_name_end,
          calls.value_begin,
          calls.parameter_end,
          calls.quote,
          "{\"name\": \"f\", \"arguments\": {",
          "[f(s=",
          "f"};
}

// Writes the markers that bytes of the input stand for.
std::string Spell(const Dialect& dialect, std::string_view input) {
  const std::vector<std::string> markers = MarkersOf(dialect);
  std::string text;
  while (!input.empty() && text.size() < kLongest) {
    const char c = input.front();
    input.remove_prefix(1);
    if (c != 1 && c != 2) {
      text += c;
      continue;
    }
    const std::string& marker = markers[TakeByte(&input) % markers.size()];
    text += c == 1 ? marker : "\xff" + marker + "\xff";
  }
  return text;
}

// Puts parts together as a text.
class Joiner {
 public:
  void Add(const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) Add(part);
  }
  std::string Finish() const {
    Check(!calls_);
    return out_;
  }

 private:
  void Add(const AnswerPart& part) {
    const bool words = part.kind == Kind::kText || part.kind == Kind::kReasoning;
    Check(words != calls_ || part.kind == Kind::kCallBegin);
    if (part.kind != Kind::kCallBegin && part.kind != Kind::kCallEnd) Check(!part.text.empty());
    if (last_ != part.kind) out_ += static_cast<char>('0' + static_cast<int>(part.kind));
    last_ = part.kind;
    out_ += part.text;
    if (part.kind == Kind::kCallBegin) {
      Check(!calls_ && !part.call.name.empty());
      calls_ = true;
      out_ += part.call.name;
    }
    if (part.kind != Kind::kCallEnd) return;
    Check(part.call.arguments.is_object());
    calls_ = false;
    constexpr auto kReplace = ordered_json::error_handler_t::replace;
    out_ += part.call.name + part.call.arguments.dump(-1, ' ', false, kReplace) + part.call.id;
  }

  std::string out_;
  Kind last_ = Kind::kText;
  bool calls_ = false;  // a call has begun
};

// Divides a text that is cut behind each of `sizes` bytes in turn; nothing: it is not cut.
std::string Divide(const AnswerSyntax& syntax, std::string_view text,
                   const std::vector<std::size_t>& sizes) {
  AnswerParser parser(syntax);
  Joiner joiner;
  for (std::size_t i = 0; !text.empty(); ++i) {
    const std::size_t size = sizes.empty() ? text.size() : sizes[i % sizes.size()];
    joiner.Add(parser.Push(text.substr(0, size)));
    text.remove_prefix(std::min(size, text.size()));
  }
  joiner.Add(parser.Flush());
  return joiner.Finish();
}

void Fuzz(std::string_view input) {
  const Dialect& dialect = Dialects()[TakeByte(&input) % Dialects().size()];
  const AnswerSyntax syntax = SyntaxOf(dialect, TakeByte(&input));
  const std::size_t seed = TakeByte(&input);
  const std::string text = Spell(dialect, input);
  const std::string whole = Divide(syntax, text, {});
  Check(Divide(syntax, text, {1}) == whole);
  Check(Divide(syntax, text, {1 + seed % 7, 1 + seed / 7 % 5, 1 + seed / 35}) == whole);
}

}  // namespace
}  // namespace kvcache

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  kvcache::Fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
