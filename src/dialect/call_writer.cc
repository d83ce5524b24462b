#include "dialect/call_writer.h"

#include "dialect/scan.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Sets the arguments to the object that a text is, or that it is with what completes it; else to {}.
void SetArguments(const std::string& text, const std::string& closing, ToolCall& call) {
  auto parsed = ParseJson(text + closing);
  const bool object = parsed.ok() && parsed->is_object();
  call.complete = object && closing.empty();
  if (object) call.arguments = *std::move(parsed);
}

}  // namespace

void CallWriter::Report(std::vector<AnswerPart>* parts) {
  if (std::exchange(reported_, true)) return;
  parts->push_back(
      {.kind = AnswerPart::Kind::kCallBegin, .call = {.name = call_.name, .id = call_.id}});
  Give(std::exchange(arguments_, {}), parts);
}

void CallWriter::Give(std::string_view arguments, std::vector<AnswerPart>* parts) {
  arguments_ += arguments;
  if (!reported_ || arguments.empty()) return;
  parts->push_back({.kind = AnswerPart::Kind::kCallArguments, .text = std::string(arguments)});
}

void CallWriter::End(const std::string& closing, std::vector<AnswerPart>* parts) {
  if (Trimmed(arguments_).empty()) {
    Give("{}", parts);
    call_.complete = closing.empty();
  } else {
    SetArguments(arguments_, closing, call_);
  }
  parts->push_back({.kind = AnswerPart::Kind::kCallEnd, .call = std::move(call_)});
  Reset();
}

}  // namespace kvcache
