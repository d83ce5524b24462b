#include "spm_vocabulary/unigram_trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "spm_vocabulary/pair_trainer.h"
#include "spm_vocabulary/spm_trainer.h"
#include "tokenizer/spm/spm_merge.h"

namespace kvcache::spm_vocabulary {
namespace {

constexpr int kRounds = 3;
constexpr std::size_t kMaxBytes = 48;
constexpr double kUnreachable = -1e300;

using Words = std::map<std::string, std::int64_t>;
using Counts = std::map<std::string, std::int64_t>;
using Scores = std::unordered_map<std::string, double>;

std::vector<std::string> Characters(std::string_view word) {
  std::vector<std::string> characters;
  for (; !word.empty(); word.remove_prefix(characters.back().size())) {
    characters.emplace_back(SpmFirstCharacter(word));
  }
  return characters;
}

// Returns twice as many pieces as wanted, with their approximate counts.
Counts Candidates(const Words& words, std::size_t wanted) {
  PairTrainer trainer;
  Counts counts;
  for (const auto& [word, count] : words) trainer.AddWord(Characters(word), count);
  std::vector<std::string> characters = trainer.Symbols();
  characters.resize(std::min(characters.size(), wanted / 3));
  for (const std::string& character : characters) counts[character] = 1;
  while (counts.size() < 2 * wanted) {
    const PairTrainer::Merge merge = trainer.MergeBest();
    if (merge.left.empty()) break;
    counts[merge.left + merge.right] = 1;
  }
  for (const auto& [word, count] : words) {
    for (std::size_t begin = 0; begin < word.size(); ++begin) {
      for (std::size_t n = 1; n <= kMaxBytes && begin + n <= word.size(); ++n) {
        const auto at = counts.find(word.substr(begin, n));
        if (at != counts.end()) at->second += count;
      }
    }
  }
  return counts;
}

Scores ScoresOf(const Counts& counts) {
  double total = 0;
  for (const auto& [piece, count] : counts) total += static_cast<double>(count);
  Scores scores;
  for (const auto& [piece, count] : counts) {
    scores[piece] = std::log(static_cast<double>(count) / total);
  }
  return scores;
}

// Adds the pieces of the word's most likely segmentation, if there is one.
void CountBestSplit(const std::string& word, std::int64_t count, const Scores& scores,
                    Counts* used) {
  std::vector<double> best(word.size() + 1, kUnreachable);
  std::vector<std::size_t> length(word.size() + 1, 0);
  best[0] = 0;
  for (std::size_t begin = 0; begin < word.size(); ++begin) {
    if (best[begin] == kUnreachable) continue;
    for (std::size_t n = 1; n <= kMaxBytes && begin + n <= word.size(); ++n) {
      const auto at = scores.find(word.substr(begin, n));
      if (at == scores.end() || best[begin] + at->second <= best[begin + n]) continue;
      best[begin + n] = best[begin] + at->second;
      length[begin + n] = n;
    }
  }
  if (best[word.size()] == kUnreachable) return;
  for (std::size_t end = word.size(); end > 0; end -= length[end]) {
    (*used)[word.substr(end - length[end], length[end])] += count;
  }
}

// Returns the `kept` most used pieces. All characters are kept.
Counts MostUsed(const Counts& used, std::size_t kept) {
  std::vector<std::pair<std::int64_t, std::string>> order;
  for (const auto& [piece, count] : used) {
    const bool character = SpmFirstCharacter(piece).size() == piece.size();
    order.emplace_back(character ? -(std::int64_t{1} << 60) - count : -count, piece);
  }
  std::sort(order.begin(), order.end());
  Counts max;
  for (std::size_t i = 0; i < std::min(kept, order.size()); ++i) {
    max[order[i].second] = used.at(order[i].second);
  }
  return max;
}

}  // namespace

TokenizerData BuildUnigramVocabulary(std::string_view text, int size) {
  const Words words = CountSpmWords(text);
  const std::size_t wanted = static_cast<std::size_t>(size) - 3;
  Counts counts = Candidates(words, wanted);
  for (int round = 1; round <= kRounds; ++round) {
    const Scores scores = ScoresOf(counts);
    Counts used;
    for (const auto& [piece, count] : counts) {
      if (SpmFirstCharacter(piece).size() == piece.size()) used[piece] = 1;
    }
    for (const auto& [word, count] : words) CountBestSplit(word, count, scores, &used);
    counts = MostUsed(used, round == kRounds ? wanted : wanted * 3 / 2);
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [piece, score] : ScoresOf(counts)) order.emplace_back(-score, piece);
  std::sort(order.begin(), order.end());

  TokenizerData data;
  data.model = "t5";
  AddToken("<pad>", TokenKind::kControl, 0, &data);
  AddToken("</s>", TokenKind::kControl, 0, &data);
  AddToken("<unk>", TokenKind::kUnknown, 0, &data);
  for (const auto& [minus_score, piece] : order) {
    AddToken(piece, TokenKind::kNormal, static_cast<float>(-minus_score), &data);
  }
  data.add_space_prefix = true;
  data.remove_extra_spaces = true;
  return data;
}

}  // namespace kvcache::spm_vocabulary
