// Writes normalisations as SentencePiece's files hold them (tokenizer/charsmap.h).
#pragma once

#include <map>
#include <string>

namespace kvcache::spm_vocabulary {

// From what to what. REQUIRES: no empty key, no zero bytes.
std::string BuildCharsmap(const std::map<std::string, std::string>& replacements);

// Some of what SentencePiece's usual one does: white space and controls to spaces, nothing for
// zero-width characters, compatibility forms to plain ones, letters with accents to one character.
std::map<std::string, std::string> UsualReplacements();

}  // namespace kvcache::spm_vocabulary
