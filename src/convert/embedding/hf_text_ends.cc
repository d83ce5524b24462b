#include "convert/embedding/hf_text_ends.h"

#include <vector>

#include "base/errors.h"
#include "base/strings.h"
#include "convert/json_members.h"

namespace kvcache {
namespace {

using nlohmann::json;

// Returns the text of a special token of a template; empty: it is a sequence.
std::string SpecialOf(const json& part) {
  const json* const special = Member(part, "SpecialToken");
  return special == nullptr ? "" : TextOf(*special, "id");
}

// Returns the text of ["[SEP]", 102].
std::string PairText(const json& stage, const char* key) {
  const json* const pair = Member(stage, key);
  const bool is_pair =
      pair != nullptr && pair->is_array() && !pair->empty() && pair->front().is_string();
  return is_pair ? pair->front().get<std::string>() : "";
}

Status TakeEnd(const json& stage, const std::string& token, std::string* end) {
  if (!end->empty()) {
    return Unsupported(StrCat("post_processor ", Quoted(TextOf(stage, "type")), " puts ",
                              Quoted(*end), " and ", Quoted(token),
                              " at one end of a text; one is supported"));
  }
  *end = token;
  return Status::Ok();
}

Status ReadTemplate(const json& stage, HfTextEnds* ends) {
  const json* const single = Member(stage, "single");
  if (single == nullptr || !single->is_array()) return Status::Ok();
  bool is_behind = false;
  for (const json& part : *single) {
    const std::string token = SpecialOf(part);
    if (token.empty()) {
      is_behind = true;
      continue;
    }
    KVCACHE_RETURN_IF_ERROR(TakeEnd(stage, token, is_behind ? &ends->end : &ends->begin));
  }
  const json* const pair = Member(stage, "pair");
  if (pair == nullptr || !pair->is_array()) return Status::Ok();
  int sequences = 0, between = 0;
  for (const json& part : *pair) {
    const std::string token = SpecialOf(part);
    if (token.empty()) {
      ++sequences;
    } else if (sequences == 1) {
      if (token != ends->end) return Status::Ok();  // other pairs than those of rerankers
      ++between;
    }
  }
  if (sequences == 2) ends->between = between;
  return Status::Ok();
}

}  // namespace

Result<std::optional<HfTextEnds>> ReadHfTextEnds(const json& tokenizer) {
  const json* const processor = Member(tokenizer, "post_processor");
  if (processor == nullptr) return std::optional<HfTextEnds>();
  std::vector<const json*> stages{processor};
  if (const json* const list = Member(*processor, "processors");
      list != nullptr && list->is_array()) {
    stages.clear();
    for (const json& each : *list) stages.push_back(&each);
  }
  HfTextEnds ends;
  for (const json* stage : stages) {
    const std::string type = TextOf(*stage, "type");
    if (type == "TemplateProcessing") {
      KVCACHE_RETURN_IF_ERROR(ReadTemplate(*stage, &ends));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      KVCACHE_RETURN_IF_ERROR(TakeEnd(*stage, PairText(*stage, "cls"), &ends.begin));
      KVCACHE_RETURN_IF_ERROR(TakeEnd(*stage, PairText(*stage, "sep"), &ends.end));
      ends.between = type == "BertProcessing" ? 1 : 2;
    } else if (type != "ByteLevel") {
      return Unsupported(StrCat("post_processor ", Quoted(type), " is not supported"));
    }
  }
  return std::optional(std::move(ends));
}

}  // namespace kvcache
