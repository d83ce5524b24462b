#include <cmath>

#include "oracle_vocabularies.h"
#include "spm_vocabulary/charsmap_builder.h"
#include "spm_vocabulary/invented_text.h"
#include "spm_vocabulary/spm_trainer.h"
#include "spm_vocabulary/unigram_trainer.h"

namespace kvcache {
namespace {

using spm_vocabulary::AddToken;
using spm_vocabulary::BuildUnigramVocabulary;
using spm_vocabulary::InventedText;

TokenizerData Full() {
  TokenizerData data = BuildUnigramVocabulary(InventedText(8).Text(300000, 40), 5000);
  data.charsmap = spm_vocabulary::BuildCharsmap(spm_vocabulary::SampleReplacements());
  AddToken("<|im_start|>", TokenKind::kControl, 0, &data);
  return data;
}

// Returns a vocabulary without normalisation and with user-defined tokens in ASCII, because
// llama.cpp also excludes prefixes of user-defined tokens from normalisation.
TokenizerData Bare() {
  TokenizerData data = BuildUnigramVocabulary(InventedText(9).Text(150000, 80), 2500);
  data.add_space_prefix = false;
  data.remove_extra_spaces = false;
  for (const char* text : {"<extra_id_0>", "abc", "[INST]"}) {
    AddToken(text, TokenKind::kUserDefined, -1, &data);
  }
  for (const char* text : {"qqq", "hello"}) AddToken(text, TokenKind::kUnused, -2, &data);
  return data;
}

TokenizerData Ties() {
  TokenizerData data = BuildUnigramVocabulary(InventedText(10).Text(150000, 50), 2500);
  data.remove_extra_spaces = false;
  for (float& score : data.scores) score = std::round(score / 2) * 2;
  return data;
}

}  // namespace

std::vector<OracleVocabulary> UnigramVocabularies() {
  return {{"t5", Full(), {}}, {"t5-bare", Bare(), {}}, {"t5-ties", Ties(), {}}};
}

}  // namespace kvcache
