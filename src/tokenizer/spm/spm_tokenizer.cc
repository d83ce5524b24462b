#include "tokenizer/spm/spm_tokenizer.h"

#include <utility>

#include "tokenizer/escaped_space.h"

namespace kvcache {

SpmTokenizer::SpmTokenizer(Vocabulary vocabulary)
    : Tokenizer(std::move(vocabulary)),
      scores_(this->vocabulary()),
      neighbors_(this->vocabulary()),
      self_encoding_(static_cast<std::size_t>(this->vocabulary_size())) {}

std::string SpmTokenizer::Escape(std::string_view text) const {
  std::string escaped;
  escaped.reserve(text.size() + text.size() / 2 + kEscapedSpace.size());
  if (vocabulary().add_space_prefix()) escaped += kEscapedSpace;
  for (;;) {
    const std::size_t space = text.find(' ');
    escaped += text.substr(0, space);
    if (space == std::string_view::npos) return escaped;
    escaped += kEscapedSpace;
    text.remove_prefix(space + 1);
  }
}

void SpmTokenizer::EncodePlain(std::string_view text, std::vector<std::int32_t>* out) const {
  const std::string escaped = Escape(text);
  SpmMerge merge(scores_);
  std::string_view rest = escaped;
  while (!rest.empty()) {
    std::string_view character = SpmFirstCharacter(rest);
    std::uint32_t left = SpmNeighbors::Code(character);
    std::size_t length = character.size();
    while (length < rest.size()) {
      character = SpmFirstCharacter(rest.substr(length));
      const std::uint32_t right = SpmNeighbors::Code(character);
      if (!neighbors_.MayJoin(left, right)) break;
      left = right;
      length += character.size();
    }
    EncodeFragment(rest.substr(0, length), &merge, out);
    rest.remove_prefix(length);
  }
}

void SpmTokenizer::EncodeFragment(std::string_view fragment, SpmMerge* merge,
                                  std::vector<std::int32_t>* out) const {
  const std::int32_t token = scores_.Find(fragment);
  if (token == kNoToken) return EncodeByJoining(fragment, merge, out);
  auto& memo = self_encoding_[static_cast<std::size_t>(token)];
  if (memo.load(std::memory_order_relaxed) == kEncodesToItself) return out->push_back(token);
  const std::size_t before = out->size();
  EncodeByJoining(fragment, merge, out);
  const bool encodes_to_itself = out->size() == before + 1 && out->back() == token;
  memo.store(encodes_to_itself ? kEncodesToItself : kEncodesToOthers, std::memory_order_relaxed);
}

void SpmTokenizer::EncodeByJoining(std::string_view fragment, SpmMerge* merge,
                                   std::vector<std::int32_t>* out) const {
  merge->Run(fragment);
  merge->ForEach([&](std::string_view text, std::int32_t token) {
    if (token != kNoToken) {
      out->push_back(token);
    } else {
      EncodeBytes(text, out);
    }
  });
}

void SpmTokenizer::EncodeBytes(std::string_view character, std::vector<std::int32_t>* out) const {
  const std::size_t before = out->size();
  for (const char c : character) {
    const std::int32_t token = vocabulary().ByteToken(static_cast<std::uint8_t>(c));
    if (token == kNoToken) {
      out->resize(before);
      out->push_back(unknown());
      return;
    }
    out->push_back(token);
  }
}

void SpmTokenizer::AppendText(std::int32_t token, std::string* out) const {
  if (vocabulary().kind(token) == TokenKind::kByte) {
    out->push_back(static_cast<char>(vocabulary().TokenByte(token)));
    return;
  }
  AppendUnescaped(vocabulary().text(token), out);
}

// Joining may produce a user-defined token with U+2581, so no space is added after it.
bool SpmTokenizer::AddsSpaceAfter(std::int32_t token) const {
  if (!vocabulary().add_space_prefix()) return false;
  if (token == kNoToken) return true;
  const bool special =
      vocabulary().IsStructure(token) || vocabulary().kind(token) == TokenKind::kUserDefined;
  return special && vocabulary().text(token).find(kEscapedSpace) == std::string_view::npos;
}

}  // namespace kvcache
