#include "tensor/coded_block.h"

#include <algorithm>

#include "tensor/block_codec.h"
#include "tensor/coded_readers.h"
#include "tensor/float_conversion.h"

namespace kvcache::codec {
namespace {

constexpr std::uint16_t kOne = 0x3c00;  // f16

float FactorOf(DType type, const CodedBlock& block, std::size_t sub) {
  const float d = F16ToF32(block.d) * CodeTypeOf(type).factor;
  if (type == DType::kNVFP4) return d * ScaleOfNvfp4(block.scales[sub]);
  return d * static_cast<float>(static_cast<std::int8_t>(block.scales[sub]));
}

template <DType kType>
void DecodeCoded(const std::byte* bytes, float* values) {
  constexpr CodeType kCode = CodeTypeOf(kType);
  CodedBlock block;
  ReadCodedBlock(kType, bytes, &block);
  constexpr auto kShared = static_cast<std::size_t>(kCode.sub);
  constexpr auto kValues = static_cast<std::size_t>(InfoOf(kType).block_size);
  for (std::size_t from = 0; from < kValues; from += kShared) {
    const float scale = FactorOf(kType, block, from / kShared);
    float minimum = 0.0f;
    if constexpr (kType == DType::kQ2_K) {
      minimum = F16ToF32(block.dmin) * static_cast<float>(block.minima[from / kShared]);
    }
    for (std::size_t i = from; i < from + kShared; ++i) {
      const float product = scale * static_cast<float>(kCode.table[block.codes[i]]);
      values[i] = kType == DType::kQ2_K ? product - minimum : product;
    }
  }
}

}  // namespace

void ReadCodedBlock(DType type, const std::byte* bytes, CodedBlock* block) {
  block->d = kOne;
  block->scales.fill(1);
  switch (type) {
    case DType::kQ2_K: return k::ReadQ2K(bytes, block);
    case DType::kQ3_K: return k::ReadQ3K(bytes, block);
    case DType::kIQ4_NL: return iq4::ReadIq4Nl(bytes, block);
    case DType::kIQ4_XS: return iq4::ReadIq4Xs(bytes, block);
    case DType::kIQ3_S: return codebook::ReadIq3S(bytes, block);
    case DType::kIQ3_XXS: return codebook::ReadIq3Xxs(bytes, block);
    case DType::kIQ2_S: return codebook::ReadIq2S(bytes, block);
    case DType::kIQ2_XS: return codebook::ReadIq2Xs(bytes, block);
    case DType::kIQ2_XXS: return codebook::ReadIq2Xxs(bytes, block);
    case DType::kIQ1_S: return codebook::ReadIq1S(bytes, block);
    case DType::kIQ1_M: return codebook::ReadIq1M(bytes, block);
    case DType::kTQ1_0: return ternary::ReadTq1(bytes, block);
    case DType::kTQ2_0: return ternary::ReadTq2(bytes, block);
    default: return iq4::ReadNvfp4(bytes, block);
  }
}

const BlockCodec kQ2_K{k::EncodeQ2K, DecodeCoded<DType::kQ2_K>};
const BlockCodec kQ3_K{k::EncodeQ3K, DecodeCoded<DType::kQ3_K>};
const BlockCodec kIQ4_NL{iq4::EncodeIq4Nl, DecodeCoded<DType::kIQ4_NL>};
const BlockCodec kIQ4_XS{iq4::EncodeIq4Xs, DecodeCoded<DType::kIQ4_XS>};
const BlockCodec kIQ3_S{nullptr, DecodeCoded<DType::kIQ3_S>};
const BlockCodec kIQ3_XXS{nullptr, DecodeCoded<DType::kIQ3_XXS>};
const BlockCodec kIQ2_S{nullptr, DecodeCoded<DType::kIQ2_S>};
const BlockCodec kIQ2_XS{nullptr, DecodeCoded<DType::kIQ2_XS>};
const BlockCodec kIQ2_XXS{nullptr, DecodeCoded<DType::kIQ2_XXS>};
const BlockCodec kIQ1_S{nullptr, DecodeCoded<DType::kIQ1_S>};
const BlockCodec kIQ1_M{nullptr, DecodeCoded<DType::kIQ1_M>};
const BlockCodec kTQ1_0{nullptr, DecodeCoded<DType::kTQ1_0>};
const BlockCodec kTQ2_0{nullptr, DecodeCoded<DType::kTQ2_0>};
const BlockCodec kNVFP4{nullptr, DecodeCoded<DType::kNVFP4>};

}  // namespace kvcache::codec
