#include "tokenizer/unicode/unicode_compose.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "base/utf8.h"
#include "tokenizer/unicode/unicode_class.h"

namespace kvcache {
namespace {

struct Part {
  std::uint32_t code_point;
  std::uint32_t order;
};

// Hangul syllables are computed: a leading consonant, a vowel, and perhaps a trailing consonant.
constexpr std::uint32_t kSyllable = 0xAC00, kLeading = 0x1100, kVowel = 0x1161, kTrailing = 0x11A7;
constexpr std::uint32_t kLeadings = 19, kVowels = 21, kTrailings = 28;
constexpr std::uint32_t kSyllables = kLeadings * kVowels * kTrailings;

std::uint32_t OrderOf(std::uint32_t code_point) {
  const auto orders = MarkOrders();
  const auto range = std::lower_bound(
      orders.begin(), orders.end(), code_point,
      [](const MarkOrder& marks, std::uint32_t point) { return marks.last < point; });
  return range != orders.end() && range->first <= code_point ? range->order : 0;
}

class Composer {
 public:
  Composer() {
    std::vector<const Decomposition*> longer;
    for (const Decomposition& each : Decompositions()) {
      const auto never = NeverComposed();
      if (each.parts[1] == 0 || std::binary_search(never.begin(), never.end(), each.code_point)) {
        continue;
      }
      longer.push_back(&each);
    }
    // A character of three parts is the one of the first two, and the third part.
    const auto size = [](const Decomposition* each) {
      return each->parts[2] == 0 ? 2 : each->parts[3] == 0 ? 3 : 4;
    };
    std::stable_sort(longer.begin(), longer.end(),
                     [&](const auto* a, const auto* b) { return size(a) < size(b); });
    for (const Decomposition* each : longer) {
      std::uint32_t first = each->parts[0];
      const int parts = size(each);
      for (int i = 1; i + 1 < parts; ++i)
        first = Pair(first, each->parts[static_cast<std::size_t>(i)]);
      const std::uint32_t last = each->parts[static_cast<std::size_t>(parts - 1)];
      pairs_.emplace(Key(first, last), each->code_point);
      may_change_[last] = true;
    }
    for (const Decomposition& each : Decompositions()) {
      if (each.parts[1] == 0) may_change_[each.code_point] = true;
    }
    for (const std::uint32_t never : NeverComposed()) may_change_[never] = true;
    for (const MarkOrder& marks : MarkOrders()) {
      for (std::uint32_t mark = marks.first; mark <= marks.last; ++mark) may_change_[mark] = true;
    }
    for (std::uint32_t i = 0; i < kVowels; ++i) may_change_[kVowel + i] = true;
    for (std::uint32_t i = 1; i < kTrailings; ++i) may_change_[kTrailing + i] = true;
  }

  // Returns whether composition can change the character or one before it.
  bool MayChange(std::uint32_t code_point) const { return may_change_[code_point]; }

  // Returns the character that two make, or 0.
  std::uint32_t Pair(std::uint32_t first, std::uint32_t second) const {
    if (first - kLeading < kLeadings && second - kVowel < kVowels) {
      return kSyllable + ((first - kLeading) * kVowels + second - kVowel) * kTrailings;
    }
    const bool open = first - kSyllable < kSyllables && (first - kSyllable) % kTrailings == 0;
    if (open && second - kTrailing - 1 < kTrailings - 1) return first + second - kTrailing;
    const auto found = pairs_.find(Key(first, second));
    return found == pairs_.end() ? 0 : found->second;
  }

 private:
  static std::uint64_t Key(std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{first} << 32 | second;
  }

  std::unordered_map<std::uint64_t, std::uint32_t> pairs_;
  std::vector<bool> may_change_ = std::vector<bool>(0x110000);
};

const Composer& Pairs() {
  static const Composer composer;
  return composer;
}

void TakeApart(std::uint32_t code_point, std::vector<Part>* parts) {
  if (code_point - kSyllable < kSyllables) {
    const std::uint32_t index = code_point - kSyllable;
    parts->push_back({kLeading + index / (kVowels * kTrailings), 0});
    parts->push_back({kVowel + index / kTrailings % kVowels, 0});
    if (index % kTrailings != 0) parts->push_back({kTrailing + index % kTrailings, 0});
    return;
  }
  const auto all = Decompositions();
  const auto found = std::lower_bound(
      all.begin(), all.end(), code_point,
      [](const Decomposition& each, std::uint32_t point) { return each.code_point < point; });
  if (found == all.end() || found->code_point != code_point) {
    parts->push_back({code_point, OrderOf(code_point)});
    return;
  }
  for (const std::uint32_t part : found->parts) {
    if (part != 0) parts->push_back({part, OrderOf(part)});
  }
}

// Sorts each run of marks by their order.
void SortMarks(std::vector<Part>* parts) {
  for (auto begin = parts->begin(); begin != parts->end();) {
    if (begin->order == 0) {
      ++begin;
      continue;
    }
    const auto end =
        std::find_if(begin, parts->end(), [](const Part& part) { return part.order == 0; });
    std::stable_sort(begin, end, [](const Part& a, const Part& b) { return a.order < b.order; });
    begin = end;
  }
}

// Composes each base with the marks behind it that no other mark blocks.
void Compose(std::vector<Part>* parts) {
  std::size_t base = parts->size();  // the last character of order 0
  std::size_t kept = 0;
  for (std::size_t i = 0; i < parts->size(); ++i) {
    const Part part = (*parts)[i];
    const bool has_base = base < kept;
    const std::uint32_t before = has_base && base + 1 < kept ? (*parts)[kept - 1].order : 0;
    const bool adjacent = has_base && base + 1 == kept;
    if (adjacent || (has_base && before < part.order)) {
      if (const std::uint32_t both = Pairs().Pair((*parts)[base].code_point, part.code_point)) {
        (*parts)[base].code_point = both;
        continue;
      }
    }
    if (part.order == 0) base = kept;
    (*parts)[kept++] = part;
  }
  parts->resize(kept);
}

// Returns whether composition can change a text. No character below U+0300 can.
bool MayChange(std::string_view text) {
  constexpr unsigned char kFirstLead = 0xCC;
  const Composer& composer = Pairs();
  for (std::size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < kFirstLead) {
      ++at;
      continue;
    }
    const Utf8Character character = DecodeUtf8(text.data() + at);
    if (composer.MayChange(character.code_point)) return true;
    at += character.bytes;
  }
  return false;
}

}  // namespace

std::string_view ComposeText(std::string_view text, std::string* storage) {
  if (!MayChange(text)) return text;
  std::vector<Part> parts;
  parts.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character character = DecodeUtf8(text.data() + at);
    TakeApart(character.code_point, &parts);
    at += character.bytes;
  }
  SortMarks(&parts);
  Compose(&parts);
  storage->clear();
  for (const Part& part : parts) AppendUtf8(part.code_point, *storage);
  return *storage;
}

}  // namespace kvcache
