// Text in every script, invented from a seed: words of a made-up lexicon per script, the
// frequent ones far more often (Zipf), so that a vocabulary trained on it has merges of every
// depth. The same text on every machine.
//
// Thread safety: an InventedText belongs to one thread.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kvcache::spm_vocabulary {

// A block of characters whose code points all exist: [first, last].
struct Script {
  std::string_view name;
  char32_t first;
  char32_t last;
  int letters;  // of a word, at most
  bool spaces;  // between words
};

// Unicode's scripts, and symbols and emoji as if they were some.
const std::vector<Script>& Scripts();

void AppendUtf8(char32_t code_point, std::string* out);

class InventedText {
 public:
  explicit InventedText(std::uint64_t seed);

  // A word, a sentence, of one script.
  const std::string& Word(std::size_t script);
  std::string Sentence(std::size_t script);
  // A line that looks like a program's.
  std::string CodeLine();
  // About `bytes` of all of these. `latin_share` (per cent) of the sentences are in Latin.
  std::string Text(std::size_t bytes, int latin_share);

  // A number in [0, n).
  std::size_t Below(std::size_t n) { return random_() % n; }
  // The same, small ones far more often: P(i) about 1 / (i + 1).
  std::size_t Zipf(std::size_t n);

 private:
  std::string InventWord(const Script& script);

  std::mt19937_64 random_;
  std::vector<std::vector<std::string>> lexicons_;  // by script
};

}  // namespace kvcache::spm_vocabulary
