#include "engine/persist/fingerprint_list.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "base/little_endian.h"
#include "base/strings.h"
#include "engine/persist/prefix_keys.h"
#include "engine/persist/state_index.h"
#include "store/content_hash.h"

namespace kvcache {
namespace {

constexpr std::string_view kFingerprintListMagic = "kvfps001";
constexpr std::size_t kMaxFingerprints = 16;

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Result<ObjectId> ListName() {
  ObjectId id;
  KVCACHE_ASSIGN_OR_RETURN(id.fingerprint,
                           store::StoreHashOf(BytesOf("kvcache: fingerprints, version 1")));
  KVCACHE_ASSIGN_OR_RETURN(id.key, store::StoreHashOf(BytesOf("list")));
  return id;
}

void AddTexts(std::string_view list, std::vector<std::string>& texts) {
  if (!list.starts_with(kFingerprintListMagic)) return;
  list.remove_prefix(kFingerprintListMagic.size());
  while (list.size() >= 4 && texts.size() < kMaxFingerprints) {
    const std::uint64_t size = ReadLittleEndian(BytesOf(list).first(4));
    list.remove_prefix(4);
    if (size > list.size()) return;
    std::string text(list.substr(0, size));
    list.remove_prefix(size);
    if (std::find(texts.begin(), texts.end(), text) == texts.end())
      texts.push_back(std::move(text));
  }
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// The lines of caches also depend on the model and the types: they are named if nothing else is.
constexpr std::string_view kCaches = "RoPE or the layout of keys";

// Returns the part of the fingerprint that a line belongs to.
std::string_view PartOf(std::string_view line) {
  if (line.starts_with("kvcache states")) return "the format";
  if (line.starts_with("model ")) return "the model's file (weights, tokenizer or settings)";
  if (line.starts_with("architecture ")) return "the architecture";
  if (line.starts_with("K ")) return "the types of keys and values";
  if (line.starts_with("multiply-add ")) return "the processor or the version of the arithmetic";
  if (line.find(", draft head ") != std::string_view::npos) return "the draft head";
  if (line.starts_with("layer ")) return "a layer's window or shape";
  return kCaches;
}

// Returns which part of the fingerprint differs for the first other one under which `has(keys)` is true.
template <typename Has>
std::string WhyUnderAnother(const std::string& ours, std::span<const std::string> fingerprints,
                            std::string_view what, const Has& has) {
  for (const std::string& theirs : fingerprints) {
    if (theirs == ours) continue;
    const auto hash = store::StoreHashOf(BytesOf(theirs));
    if (!hash.ok()) return {};
    const auto keys = PrefixKeys::Make(*hash);
    if (!keys.ok()) return {};
    if (!has(*keys)) continue;
    return StrCat("it has the ", what,
                  " under another fingerprint: ", FingerprintDifference(ours, theirs), " differs");
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> ReadFingerprints(Store& store) {
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, ListName());
  std::vector<std::string> texts;
  const Status status = store.GetCopies(id, [&](std::span<const std::byte> payload) {
    AddTexts({reinterpret_cast<const char*>(payload.data()), payload.size()}, texts);
    return Status::Ok();
  });
  (void)status.ok();  // without the list, a miss has no reason
  return texts;
}

Status AddFingerprint(Store& store, const std::string& text) {
  KVCACHE_ASSIGN_OR_RETURN(const ObjectId id, ListName());
  KVCACHE_ASSIGN_OR_RETURN(std::vector<std::string> texts, ReadFingerprints(store));
  if (std::find(texts.begin(), texts.end(), text) != texts.end()) return Status::Ok();
  texts.insert(texts.begin(), text);
  if (texts.size() > kMaxFingerprints) texts.resize(kMaxFingerprints);
  const std::span<const std::byte> magic = BytesOf(kFingerprintListMagic);
  std::vector<std::byte> list(magic.begin(), magic.end());
  for (const std::string& each : texts) {
    AppendLittleEndian(each.size(), 4, list);
    const std::span<const std::byte> bytes = BytesOf(each);
    list.insert(list.end(), bytes.begin(), bytes.end());
  }
  return store.Put(id, list);
}

std::string FingerprintDifference(const std::string& ours, const std::string& theirs) {
  const std::vector<std::string_view> a = Lines(ours);
  const std::vector<std::string_view> b = Lines(theirs);
  const std::multiset<std::string_view> in_a(a.begin(), a.end());
  const std::multiset<std::string_view> in_b(b.begin(), b.end());
  std::vector<std::string_view> parts;
  const auto compare = [&](const auto& lines, const auto& one, const auto& other) {
    for (const std::string_view line : lines) {
      if (one.count(line) == other.count(line)) continue;
      const std::string_view part = PartOf(line);
      if (std::find(parts.begin(), parts.end(), part) == parts.end()) parts.push_back(part);
    }
  };
  compare(a, in_a, in_b);
  compare(b, in_b, in_a);
  if (parts.size() > 1) std::erase(parts, kCaches);
  std::string text;
  for (const std::string_view part : parts) text += StrCat(text.empty() ? "" : ", ", part);
  return text;
}

std::string WhyMissed(Store& store, const std::string& ours,
                      std::span<const std::string> fingerprints,
                      std::span<const std::int32_t> tokens, std::uint64_t salt) {
  return WhyUnderAnother(ours, fingerprints, "prompt", [&](const PrefixKeys& keys) {
    const auto nothing = keys.Nothing(salt);
    if (!nothing.ok()) return false;
    bool has_any = false;
    // The first piece of the prompt, or any state of it.
    const auto has_piece = [&](const ObjectId& id) {
      const auto has = has_any ? Result<bool>(false) : store.Contains(id);
      has_any = has_any || (has.ok() && *has);
      return false;
    };
    (void)keys.Divide(tokens, PrefixKeys::kMinPiece, *nothing, has_piece).ok();
    if (has_any) return true;
    const auto max = static_cast<Position>(tokens.size()) - 1;
    (void)ForEachState(store, keys, tokens, salt, PrefixKeys::kMinPiece, max,
                       [&](const StoredPiece&) -> Result<bool> {
                         has_any = true;
                         return false;
                       })
        .ok();
    return has_any;
  });
}

std::string WhyTextMissed(Store& store, const std::string& ours,
                          std::span<const std::string> fingerprints,
                          std::span<const std::int32_t> text, std::uint64_t salt) {
  return WhyUnderAnother(ours, fingerprints, "text", [&](const PrefixKeys& keys) {
    const auto id = keys.OutputId(text, salt);
    const auto has = id.ok() ? store.Contains(*id) : Result<bool>(false);
    return has.ok() && *has;
  });
}

}  // namespace kvcache
