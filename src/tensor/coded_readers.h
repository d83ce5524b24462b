// The readers and encoders of coded_block.h, one of each type: a reader fills what its type has of
// `block`. coded_k.cc has Q2_K and Q3_K, coded_iq4.cc IQ4 and NVFP4, coded_ternary.cc TQ1_0 and TQ2_0,
// coded_codebook.cc the types with codebooks.
#pragma once

#include "tensor/coded_block.h"

namespace kvcache::codec::k {
void ReadQ2K(const std::byte* bytes, CodedBlock* block);
void ReadQ3K(const std::byte* bytes, CodedBlock* block);
void EncodeQ2K(const float* values, std::byte* bytes);
void EncodeQ3K(const float* values, std::byte* bytes);
}  // namespace kvcache::codec::k

namespace kvcache::codec::iq4 {
void ReadIq4Nl(const std::byte* bytes, CodedBlock* block);
void ReadIq4Xs(const std::byte* bytes, CodedBlock* block);
void ReadNvfp4(const std::byte* bytes, CodedBlock* block);
void EncodeIq4Nl(const float* values, std::byte* bytes);
void EncodeIq4Xs(const float* values, std::byte* bytes);
}  // namespace kvcache::codec::iq4

namespace kvcache::codec::codebook {
void ReadIq3S(const std::byte* bytes, CodedBlock* block);
void ReadIq3Xxs(const std::byte* bytes, CodedBlock* block);
void ReadIq2S(const std::byte* bytes, CodedBlock* block);
void ReadIq2Xs(const std::byte* bytes, CodedBlock* block);
void ReadIq2Xxs(const std::byte* bytes, CodedBlock* block);
void ReadIq1S(const std::byte* bytes, CodedBlock* block);
void ReadIq1M(const std::byte* bytes, CodedBlock* block);
}  // namespace kvcache::codec::codebook

namespace kvcache::codec::ternary {
void ReadTq1(const std::byte* bytes, CodedBlock* block);
void ReadTq2(const std::byte* bytes, CodedBlock* block);
}  // namespace kvcache::codec::ternary
