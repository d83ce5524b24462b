// Finds the tokens with a special role, by the file's ids and by well-known texts.
//
// Many files lack ids (most often the end of turn) or give a control token the type normal.
// llama.cpp recognises such tokens by their texts, and so does this file. If a vocabulary has
// several texts of one role, the first one in the list wins; in llama.cpp, any of them.
// Source: llama.cpp, src/llama-vocab.cpp.
#include <initializer_list>

#include "tokenizer/vocabulary.h"

namespace kvcache {
namespace {

// Tokens with these texts end an answer, whatever ids the file has.
constexpr std::string_view kEndTexts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "</s>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<end_of_utterance>",
    "[e~[",
    "<｜end▁of▁sentence｜>",
};

// Structure tokens inside an answer that belong to its text.
constexpr std::string_view kShownTexts[] = {"<|channel|>", "<|message|>", "<|start|>",
                                            "<|constrain|>"};

}  // namespace

const std::vector<SpecialRole>& SpecialRoles() {
  using Ids = SpecialIds;
  using Data = TokenizerData;
  static const std::vector<SpecialRole> roles = {
      {"bos_token_id", &Ids::bos, &Data::bos, false, {}},
      {"eos_token_id", &Ids::eos, &Data::eos, true, {}},
      {"unknown_token_id", &Ids::unknown, &Data::unknown, false, {}},
      {"seperator_token_id", &Ids::separator, &Data::separator, false, {}},  // sic
      {"padding_token_id", &Ids::padding, &Data::padding, false, {}},
      {"eot_token_id",
       &Ids::eot,
       &Data::eot,
       true,
       {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
        "<EOT>", "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}},
      {"eom_token_id", &Ids::eom, &Data::eom, true, {"<|eom_id|>"}},
      {"fim_pre_token_id",
       &Ids::fim_prefix,
       &Data::fim_prefix,
       false,
       {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>"}},
      {"fim_suf_token_id",
       &Ids::fim_suffix,
       &Data::fim_suffix,
       false,
       {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>"}},
      {"fim_mid_token_id",
       &Ids::fim_middle,
       &Data::fim_middle,
       false,
       {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>"}},
      {"fim_pad_token_id",
       &Ids::fim_padding,
       &Data::fim_padding,
       true,
       {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
      {"fim_rep_token_id",
       &Ids::fim_repository,
       &Data::fim_repository,
       true,
       {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
      {"fim_sep_token_id", &Ids::fim_separator, &Data::fim_separator, true, {"<|file_sep|>"}},
  };
  return roles;
}

void Vocabulary::FindRolesByText() {
  for (const SpecialRole& role : SpecialRoles()) {
    for (const std::string_view known : role.texts) {
      if (ids_.*role.id != kNoToken) break;
      ids_.*role.id = Find(known);
      if (ids_.*role.id != kNoToken) SetKind(ids_.*role.id, TokenKind::kControl);
    }
  }
}

void Vocabulary::MarkEndOfGeneration() {
  for (const std::string_view known : kEndTexts) {
    const std::int32_t token = Find(known);
    if (token == kNoToken) continue;
    SetKind(token, TokenKind::kControl);
    SetFlag(token, kEndOfGeneration);
  }
  for (const std::string_view known : kShownTexts) {
    const std::int32_t token = Find(known);
    if (token == kNoToken) continue;
    SetKind(token, TokenKind::kUserDefined);
  }
  for (const SpecialRole& role : SpecialRoles()) {
    const std::int32_t token = ids_.*role.id;
    if (role.ends_generation && token != kNoToken) SetFlag(token, kEndOfGeneration);
  }
  UnmarkInnerEnds();
}

void Vocabulary::UnmarkInnerEnds() {
  const auto ends = [this](std::string_view known) { return IsEndOfGeneration(Find(known)); };
  // In vocabularies with these tokens, "<|end|>" ends one of several messages, not the answer.
  const bool calls = ends("<|call|>") || ends("<|calls|>");
  if (calls && (ends("<|return|>") || ends("<|flush|>")) && ends("<|end|>")) {
    ClearFlag(Find("<|end|>"), kEndOfGeneration);
    SetKind(Find("<|end|>"), TokenKind::kUserDefined);
  }
  if (ends("<|tool_response>") && ends("</s>")) {
    ClearFlag(Find("</s>"), kEndOfGeneration);
    SetKind(Find("</s>"), TokenKind::kNormal);
  }
}

}  // namespace kvcache
