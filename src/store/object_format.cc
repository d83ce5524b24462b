#include "store/object_format.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/errors.h"
#include "base/little_endian.h"
#include "base/strings.h"

namespace kvcache::store {
namespace {

constexpr std::uint64_t kObjectMagic = 0x3130306a626f766b;  // "kvobj001"
// Offsets of the fields.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kLengthAt = 8;
constexpr std::size_t kFingerprintAt = 16;
constexpr std::size_t kKeyAt = 48;
constexpr std::size_t kPayloadSumAt = 80;
constexpr std::size_t kReservedAt = 96;
constexpr std::size_t kEnvelopeSumAt = 120;

void PutNumber(std::span<std::byte> bytes, std::size_t at, std::uint64_t number) {
  WriteLittleEndian(number, bytes.subspan(at, 8));
}

std::uint64_t NumberAt(std::span<const std::byte> bytes, std::size_t at) {
  return ReadLittleEndian(bytes.subspan(at, 8));
}

void PutHash(std::span<std::byte> bytes, std::size_t at, const StoreHash& hash) {
  std::memcpy(bytes.data() + at, hash.bytes.data(), hash.bytes.size());
}

std::uint64_t EnvelopeSum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), kEnvelopeSumAt);
}

// The checksum covers the length, too, so payloads that end in zeros differ.
XXH128_hash_t PayloadSum(std::span<const std::byte> payload) {
  return XXH3_128bits_withSeed(payload.data(), payload.size(), payload.size());
}

}  // namespace

Envelope MakeEnvelope(const ObjectId& id, std::span<const std::byte> payload) {
  Envelope envelope{};
  PutNumber(envelope, kMagicAt, kObjectMagic);
  PutNumber(envelope, kLengthAt, payload.size());
  PutHash(envelope, kFingerprintAt, id.fingerprint);
  PutHash(envelope, kKeyAt, id.key);
  const XXH128_hash_t sum = PayloadSum(payload);
  PutNumber(envelope, kPayloadSumAt, sum.low64);
  PutNumber(envelope, kPayloadSumAt + 8, sum.high64);
  PutNumber(envelope, kEnvelopeSumAt, EnvelopeSum(envelope));
  return envelope;
}

Result<EnvelopeDescription> DescribeEnvelope(std::span<const std::byte> object) {
  if (object.size() < kEnvelopeBytes) {
    return Corrupt(
        StrCat("the object has ", object.size(), " bytes; an envelope has ", kEnvelopeBytes));
  }
  const std::span<const std::byte> envelope = object.first(kEnvelopeBytes);
  if (NumberAt(envelope, kMagicAt) != kObjectMagic) {
    return Corrupt("the object does not begin with its format's name");
  }
  if (NumberAt(envelope, kEnvelopeSumAt) != EnvelopeSum(envelope)) {
    return Corrupt("the checksum of the object's envelope is wrong");
  }
  const std::span<const std::byte> reserved =
      envelope.subspan(kReservedAt, kEnvelopeSumAt - kReservedAt);
  if (std::any_of(reserved.begin(), reserved.end(),
                  [](std::byte b) { return b != std::byte{0}; })) {
    return Corrupt("the object's envelope has fields of a later version");
  }
  EnvelopeDescription description;
  const auto copy = [&](StoreHash& hash, std::size_t at) {
    std::memcpy(hash.bytes.data(), envelope.data() + at, hash.bytes.size());
  };
  copy(description.id.fingerprint, kFingerprintAt);
  copy(description.id.key, kKeyAt);
  description.payload_bytes = NumberAt(envelope, kLengthAt);
  return description;
}

Result<std::span<const std::byte>> OpenEnvelope(const ObjectId& id,
                                                std::span<const std::byte> object) {
  KVCACHE_ASSIGN_OR_RETURN(const EnvelopeDescription description, DescribeEnvelope(object));
  const std::span<const std::byte> envelope = object.first(kEnvelopeBytes);
  if (description.id != id) {
    return Corrupt("the object has another key than it is stored under");
  }
  const std::span<const std::byte> payload = object.subspan(kEnvelopeBytes);
  if (description.payload_bytes != payload.size()) {
    return Corrupt(StrCat("the payload has ", payload.size(), " bytes; the envelope says ",
                          description.payload_bytes));
  }
  const XXH128_hash_t sum = PayloadSum(payload);
  if (NumberAt(envelope, kPayloadSumAt) != sum.low64 ||
      NumberAt(envelope, kPayloadSumAt + 8) != sum.high64) {
    return Corrupt("the checksum of the payload is wrong");
  }
  return payload;
}

}  // namespace kvcache::store
