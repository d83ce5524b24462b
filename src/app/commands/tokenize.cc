// kvcache tokenize: text to token ids and back.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "app/chat/answer_output.h"
#include "app/commands/command.h"
#include "app/commands/json_report.h"
#include "app/flags/model_store.h"
#include "app/terminal/terminal.h"
#include "base/errors.h"
#include "base/strings.h"
#include "tokenizer/tokenizer.h"

namespace kvcache::app {
namespace {

struct TokenizeFlags {
  std::vector<std::string> words;  // [MODEL] TEXT, or [MODEL] with --detokenize
  std::string ids;
  bool detokenize = false;
  bool special = false;
  bool no_bos = false;
  bool json = false;
};

std::string JoinIds(const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) text += StrCat(text.empty() ? "" : ",", id);
  return text;
}

Status Detokenize(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  KVCACHE_ASSIGN_OR_RETURN(const auto ids, ParseTokens(flags.ids));
  KVCACHE_ASSIGN_OR_RETURN(
      const std::string text,
      tokenizer.Decode(ids,
                       {.control = flags.special ? ControlText::kShown : ControlText::kHidden}));
  if (flags.json) {
    PrintJson({{"text", text}, {"tokens", ids}});
  } else {
    AnswerOutput output;
    (void)output.Write(text);
    output.End();
    (void)std::fputc('\n', stdout);
  }
  return Status::Ok();
}

Status Encode(const TokenizeFlags& flags, const Tokenizer& tokenizer) {
  EncodeOptions options;
  if (flags.no_bos) options.add_bos = AddToken::kNo;
  if (flags.special) options.special = SpecialText::kParse;
  KVCACHE_ASSIGN_OR_RETURN(const auto ids, tokenizer.Encode(flags.words.back(), options));
  if (!flags.json) {
    (void)std::printf("%s\n", JoinIds(ids).c_str());
    return Status::Ok();
  }
  nlohmann::json pieces = nlohmann::json::array();
  for (const std::int32_t id : ids) pieces.push_back(tokenizer.Piece(id, ControlText::kShown));
  PrintJson({{"tokens", ids}, {"pieces", pieces}});
  return Status::Ok();
}

// "kvcache tokenize model.gguf" is a model without its text, not a text.
Status CheckText(const TokenizeFlags& flags) {
  const bool is_model =
      !flags.detokenize && flags.words.size() == 1 && flags.words.front().ends_with(".gguf");
  if (!is_model) return Status::Ok();
  return InvalidArgument(StrCat("the text is missing after the model ", flags.words.front(),
                                ": kvcache tokenize MODEL TEXT"));
}

// Returns an error if the command line has too few or too many words.
Status CheckWords(const TokenizeFlags& flags) {
  const std::vector<std::string>& words = flags.words;
  const std::size_t max = flags.detokenize ? 1 : 2;
  if (!flags.detokenize && words.empty())
    return InvalidArgument("TEXT or --detokenize is required");
  if (words.size() > max) {
    return InvalidArgument(StrCat("The following argument was not expected: ", words.back()));
  }
  if (words.size() == max && words.front().empty())
    return InvalidArgument("MODEL: its value is empty");
  return Status::Ok();
}

Status Tokenize(const TokenizeFlags& flags) {
  KVCACHE_RETURN_IF_ERROR(CheckText(flags));
  const std::size_t without_model = flags.detokenize ? 0 : 1;
  const std::string model = flags.words.size() > without_model ? flags.words.front() : "";
  KVCACHE_ASSIGN_OR_RETURN(const auto tokenizer, OpenTokenizer(model));
  AddNotes(model, *tokenizer);
  return flags.detokenize ? Detokenize(flags, *tokenizer) : Encode(flags, *tokenizer);
}

}  // namespace

Command AddTokenize(CommandLine& line) {
  FlagSet command = line.AddCommand("tokenize", "Convert text to token ids, or token ids to text");
  command.SetFooter("kvcache tokenize [MODEL] TEXT\nkvcache tokenize [MODEL] --detokenize IDS");
  const auto flags = std::make_shared<TokenizeFlags>();
  // Two options of one word each: in a list of words the library takes "[a,b]" for two.
  const auto add_word = [&](const char* name, const char* help) {
    const auto keep = [flags](const std::string& word) {
      flags->words.push_back(word);
      return Status::Ok();
    };
    command.AddParsed(name, keep, help);
  };
  add_word("MODEL", "a .gguf file, or a name that 'kvcache list' shows (default: story)");
  add_word("TEXT", "the text; without MODEL it is the only word");
  const Flag ids =
      command
          .AddText("--detokenize", &flags->ids, "convert these token ids to text, such as 1,450,17")
          .ValueName("IDS");
  command.AddSwitch("--special", &flags->special,
                    "parse special tokens, such as <s>, in TEXT; show them in output");
  command.AddSwitch("--no-bos", &flags->no_bos, "leave out the begin-of-sequence token");
  command.AddSwitch("--json", &flags->json, "print one JSON object");
  command.CheckParsed([flags, ids] {
    flags->detokenize = ids.given();
    return CheckWords(*flags);
  });
  return {"tokenize", [flags] { return Tokenize(*flags); }};
}

}  // namespace kvcache::app
