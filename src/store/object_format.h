// The envelope of a stored object: 128 bytes before its payload, which say what it is and detect damage.
// docs/formats/store-object.md describes each byte.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvcache/status.h"
#include "kvcache/store.h"

namespace kvcache::store {

inline constexpr std::size_t kEnvelopeBytes = 128;

using Envelope = std::array<std::byte, kEnvelopeBytes>;

// Returns the envelope of an object.
Envelope MakeEnvelope(const ObjectId& id, std::span<const std::byte> payload);

// Returns the payload of `object`, an envelope and a payload. Errors: kCorrupt, with what is wrong, if a
// byte of it is not as it was written, or if it is another object than `id`.
Result<std::span<const std::byte>> OpenEnvelope(const ObjectId& id,
                                                std::span<const std::byte> object);

struct EnvelopeDescription {
  ObjectId id;
  std::uint64_t payload_bytes = 0;
};
// Returns what an envelope says, which `object` begins with. Errors: kCorrupt.
Result<EnvelopeDescription> DescribeEnvelope(std::span<const std::byte> object);

}  // namespace kvcache::store
