#include "spm_vocabulary/charsmap_builder.h"

#include <cstdint>
#include <cstring>
#include <set>
#include <vector>

#include "spm_vocabulary/invented_text.h"

namespace kvcache::spm_vocabulary {
namespace {

using Entries = std::map<std::string, std::uint32_t>;  // key to the replacement's offset

class DoubleArray {
 public:
  explicit DoubleArray(const Entries& entries) {
    AddBlock();
    used_[0] = true;
    Place(0, entries);
  }

  const std::vector<std::uint32_t>& units() const { return units_; }

 private:
  void AddBlock() {
    units_.resize(units_.size() + 256);
    used_.resize(units_.size());
  }

  // Places the children of the node at `unit`; `entries` has the rests of their keys.
  void Place(std::uint32_t unit, const Entries& entries) {
    std::map<std::uint8_t, Entries> children;
    const auto own = entries.find("");
    for (const auto& [key, place] : entries) {
      if (!key.empty()) children[static_cast<std::uint8_t>(key[0])][key.substr(1)] = place;
    }
    std::set<std::uint8_t> bytes;
    for (const auto& [byte, rest] : children) bytes.insert(byte);
    if (own != entries.end()) bytes.insert(0);
    const std::uint32_t base = FindBase(bytes);
    units_[unit] |= (unit ^ base) << 10;
    for (const std::uint8_t byte : bytes) used_[base ^ byte] = true;
    if (own != entries.end()) {
      units_[unit] |= 0x100;
      units_[base] = 0x80000000 | own->second;
    }
    for (const auto& [byte, rest] : children) units_[base ^ byte] |= byte;
    for (const auto& [byte, rest] : children) Place(base ^ byte, rest);
  }

  std::uint32_t FindBase(const std::set<std::uint8_t>& bytes) {
    for (std::uint32_t base = 0;; ++base) {
      while (base + 256 > units_.size()) AddBlock();
      bool fits = !bases_.contains(base);
      for (const std::uint8_t byte : bytes) fits = fits && !used_[base ^ byte];
      if (!fits) continue;
      bases_.insert(base);
      return base;
    }
  }

  std::vector<std::uint32_t> units_;
  std::vector<bool> used_;
  std::set<std::uint32_t> bases_;
};

std::string Utf8(char32_t c) {
  std::string text;
  AppendUtf8(c, &text);
  return text;
}

}  // namespace

std::string BuildCharsmap(const std::map<std::string, std::string>& replacements) {
  std::string texts;
  Entries entries;
  for (const auto& [from, to] : replacements) {
    entries[from] = static_cast<std::uint32_t>(texts.size());
    texts += to + '\0';
  }
  const DoubleArray array(entries);
  const auto bytes = static_cast<std::uint32_t>(array.units().size() * 4);
  std::string map(sizeof(bytes) + bytes, '\0');
  std::memcpy(map.data(), &bytes, sizeof(bytes));
  std::memcpy(map.data() + sizeof(bytes), array.units().data(), bytes);
  return map + texts;
}

std::map<std::string, std::string> SampleReplacements() {
  std::map<std::string, std::string> map = {{"\u200B", ""},
                                            {"\uFEFF", ""},
                                            {"\u00AD", ""},
                                            {"\x7F", ""},
                                            {"ﬁ", "fi"},
                                            {"ﬀ", "ff"},
                                            {"ﬃ", "ffi"},
                                            {"…", "..."},
                                            {"½", "1⁄2"},
                                            {"㎏", "kg"},
                                            {"™", "TM"},
                                            {"ª", "a"},
                                            {"Å", "Å"},
                                            {"Ω", "Ω"},
                                            {"\u1100\u1161", "가"},
                                            {"\u1102\u1161", "나"},
                                            {"가\u11A8", "각"},
                                            {"か\u3099", "が"},
                                            {"ｶﾞ", "ガ"},
                                            {"ﷺ", "صلى الله عليه وسلم"},
                                            {"\u1100\u1161\u11A8", "각"}};
  for (char32_t c = 1; c < 0x20; ++c) map[Utf8(c)] = c >= '\t' && c <= '\r' ? " " : "";
  for (const char32_t c : {0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}) {
    map[Utf8(c)] = " ";
  }
  for (char32_t c = 0x2000; c <= 0x200A; ++c) map[Utf8(c)] = " ";
  for (char32_t c = '!'; c <= '~'; ++c) map[Utf8(c + 0xFEE0)] = Utf8(c);
  for (char32_t c = 0; c < 20; ++c) map[Utf8(0x2460 + c)] = std::to_string(c + 1);
  const struct {
    char32_t accent;
    const char32_t* pairs;
  } accents[] = {{0x300, U"AÀEÈIÌOÒUÙaàeèiìoòuù"},
                 {0x301, U"AÁEÉIÍOÓUÚaáeéiíoóuúyýnńсć"},
                 {0x302, U"AÂEÊIÎOÔUÛaâeêiîoôuû"},
                 {0x303, U"AÃNÑOÕaãnñoõ"},
                 {0x308, U"AÄEËIÏOÖUÜaäeëiïoöuüеёЕЁ"}};
  for (auto [accent, pairs] : accents) {
    for (; *pairs != 0; pairs += 2) map[Utf8(pairs[0]) + Utf8(accent)] = Utf8(pairs[1]);
  }
  return map;
}

}  // namespace kvcache::spm_vocabulary
