// The codebooks of ggml's IQ types: the groups of values that a block may hold. An entry is eight
// digits of two bits (IQ2, IQ1), or four digits of three bits (IQ3); the first value has the lowest
// bits. The type's table in coded_block.h says which value a digit is.
//
// Source: ggml's format: the tables iq2xxs_grid to iq1s_grid of ggml-common.h (MIT licence).
#pragma once

#include <array>
#include <cstdint>

namespace kvcache::codec {

extern const std::array<std::uint16_t, 256> kIq2Xxs;
extern const std::array<std::uint16_t, 512> kIq2Xs;
extern const std::array<std::uint16_t, 1024> kIq2S;
extern const std::array<std::uint16_t, 256> kIq3Xxs;
extern const std::array<std::uint16_t, 512> kIq3S;
extern const std::array<std::uint16_t, 2048> kIq1;  // IQ1_S and IQ1_M

}  // namespace kvcache::codec
