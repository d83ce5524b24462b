// Texts of vectors and scores. A number has the fewest digits that mean the same float.
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string>

namespace kvcache {

// Returns a JSON number; null for one that JSON has not.
std::string NumberText(float value);

// Returns a JSON array.
std::string VectorText(std::span<const float> values);

// Returns the little-endian bytes of the floats in base64 (RFC 4648), as OpenAI's clients decode them.
std::string Base64Text(std::span<const float> values);

}  // namespace kvcache
