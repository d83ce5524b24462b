#include "dialect/call_writer.h"

#include "dialect/scan.h"
#include "json/json_text.h"

namespace kvcache {
namespace {

using Json = nlohmann::ordered_json;

// Returns the object that a text is, or that it is with what completes it; else {}.
Json ObjectOf(const std::string& text, const std::string& closing) {
  auto parsed = ParseJson(text + closing);
  return parsed.ok() && parsed->is_object() ? *std::move(parsed) : Json::object();
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
  } else {
    call_.arguments = ObjectOf(arguments_, closing);
  }
  parts->push_back({.kind = AnswerPart::Kind::kCallEnd, .call = std::move(call_)});
  Reset();
}

}  // namespace kvcache
