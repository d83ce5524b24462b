// Invents text in every script from a seed. Each script has a made-up lexicon, whose words occur by
// Zipf's law, so that a vocabulary trained on the text has merges of every depth. The text is the
// same on every machine.
//
// Thread safety: an InventedText belongs to one thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::spm_vocabulary {

// A range of characters whose code points are all assigned: [first, last].
struct Script {
  std::string_view name;
  char32_t first;
  char32_t last;
  int letters;  // maximum number of letters of a word
  bool spaces;  // words are separated by spaces
};

// Returns Unicode's scripts; symbols and emoji count as scripts too.
const std::vector<Script>& Scripts();

void AppendUtf8(char32_t code_point, std::string* out);

class InventedText {
 public:
  explicit InventedText(std::uint64_t seed);

  // Return a word or a sentence of one script.
  const std::string& Word(std::size_t script);
  std::string Sentence(std::size_t script);
  // Returns a line that looks like code.
  std::string CodeLine();
  // Returns about `bytes` of sentences and code; `latin_share` percent of the sentences are Latin.
  std::string Text(std::size_t bytes, int latin_share);

  // Returns a number in [0, n).
  std::size_t Below(std::size_t n) { return random_() % n; }
  // Returns a number in [0, n) by Zipf's law: P(i) is about 1 / (i + 1).
  std::size_t Zipf(std::size_t n);

 private:
  std::string InventWord(const Script& script);

  std::mt19937_64 random_;
  std::vector<std::vector<std::string>> lexicons_;  // by script
};

}  // namespace kvcache::spm_vocabulary
