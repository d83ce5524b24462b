// The fingerprints that a store has seen, as texts, so that a miss can say which part of it differs: the
// keys of a prompt are the same under every fingerprint.
//
// Bytes of the list: "kvfps001", then for each text, the latest first: u32 length, text. Little-endian.
//
// Thread safety: free functions; those of the store.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache/store.h"

namespace kvcache {

// Returns the texts that the store has seen, at most 16. A damaged list is as none. Errors: kOutOfMemory.
Result<std::vector<std::string>> ReadFingerprints(Store& store);
// Adds a text, if it is not there. Errors: the store's.
Status AddFingerprint(Store& store, const std::string& text);

// Returns the names of the parts that differ between two texts of FingerprintText, such as "the types of
// keys and values", with commas.
std::string FingerprintDifference(const std::string& ours, const std::string& theirs);

// Returns why a store has nothing of a prompt, if it has it under another one of `fingerprints`; else an
// empty text. Asks a few questions for each.
std::string WhyMissed(Store& store, const std::string& ours,
                      std::span<const std::string> fingerprints,
                      std::span<const std::int32_t> tokens, std::uint64_t salt);
// The same for the output of an encoder that has read `text`.
std::string WhyTextMissed(Store& store, const std::string& ours,
                          std::span<const std::string> fingerprints,
                          std::span<const std::int32_t> text, std::uint64_t salt);

}  // namespace kvcache
