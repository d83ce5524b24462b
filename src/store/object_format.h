// The envelope of a stored object: 128 bytes before its payload, which say what it is and detect damage.
// docs/formats/store-object.md describes each byte.
//
// Thread safety: pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "kvcache/status.h"
#include "kvcache/store.h"

struct XXH3_state_s;  // of xxhash.h

namespace kvcache {

inline constexpr std::size_t kEnvelopeBytes = 128;

using Envelope = std::array<std::byte, kEnvelopeBytes>;

// Returns the envelope of an object.
Envelope MakeEnvelope(const ObjectId& id, std::span<const std::byte> payload);

// Returns the payload of `object`, an envelope and a payload. Errors: kCorrupt, with what is wrong, if a
// byte of it is not as it was written, or if it is another object than `id`.
Result<std::span<const std::byte>> OpenEnvelope(const ObjectId& id,
                                                std::span<const std::byte> object);

// Verifies an object in pieces, each while the processor's cache still has it.
class PayloadCheck {
 public:
  // Begins an object of so many bytes, its envelope included. Returns false if there is no memory.
  [[nodiscard]] bool Begin(std::size_t object_bytes);
  // Takes the object's next bytes.
  void Add(std::span<const std::byte> bytes);
  // As OpenEnvelope. REQUIRES: all bytes of `object` were added.
  Result<std::span<const std::byte>> Open(const ObjectId& id,
                                          std::span<const std::byte> object) const;

 private:
  struct Free {
    void operator()(XXH3_state_s* sum) const;
  };
  std::unique_ptr<XXH3_state_s, Free> sum_;
  std::size_t envelope_left_ = 0;  // bytes before the payload
};

struct EnvelopeDescription {
  ObjectId id;
  std::uint64_t payload_bytes = 0;
};
// Returns what an envelope says, which `object` begins with. Errors: kCorrupt.
Result<EnvelopeDescription> DescribeEnvelope(std::span<const std::byte> object);

}  // namespace kvcache
