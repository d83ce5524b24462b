// Writes normalisations in the form of SentencePiece's files (tokenizer/unigram/charsmap.h).
#pragma once

#include <map>
#include <string>

namespace kvcache::spm_vocabulary {

// Returns the map that replaces each key by its value. REQUIRES: no key is empty; there are no zero
// bytes.
std::string BuildCharsmap(const std::map<std::string, std::string>& replacements);

// Returns some replacements of SentencePiece's default normalisation: white space and controls
// become spaces, zero-width characters vanish, compatibility forms become plain characters, and
// letters with combining accents become single characters.
std::map<std::string, std::string> SampleReplacements();

}  // namespace kvcache::spm_vocabulary
