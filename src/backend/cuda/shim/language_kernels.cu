#include "backend/cuda/shim/language_kernels.h"

#include "backend/cuda/language/kernel.h"

namespace kvcache::cuda {

KVCACHE_KERNEL(language_add, LanguageAddArgs, 256) {
  const std::int64_t i = std::int64_t{BlockX()} * 256 + Thread();
  if (i < args.values) args.y[i] = Add(args.y[i], args.x[i]);
}

struct SumShared {
  float sums[8];
};

KVCACHE_KERNEL(language_sum, LanguageSumArgs, 256) {
  SumShared& shared = SharedMemory<SumShared>();
  float sum = args.x[BlockX() * 256 + Thread()];
  for (int mask = 16; mask > 0; mask /= 2) sum = Add(sum, ShuffleXor(sum, mask));
  if (Lane() == 0) shared.sums[Warp()] = sum;
  BlockBarrier();
  if (Thread() == 0) {
    float total = 0.0f;
    for (int warp = 0; warp < 8; ++warp) total = Add(total, shared.sums[warp]);
    args.y[BlockX()] = total;
  }
}

KVCACHE_KERNEL(language_mma, LanguageMmaArgs, 32) {
  const int group = Lane() / 4;
  const int column = Lane() % 4 * 4;
  std::uint32_t a[4];
  std::uint32_t b[2];
  std::int32_t d[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4; ++i) {
    memcpy(&a[i], args.a + (group + i % 2 * 8) * 32 + column + i / 2 * 16, 4);
  }
  for (int i = 0; i < 2; ++i) memcpy(&b[i], args.b + group * 32 + column + i * 16, 4);
  if (args.inputs == 16) {
    MmaS8Of16(d, {a[0], a[1]}, b[0]);
  } else if (args.a_is_signed != 0) {
    MmaS8(d, a, b);
  } else {
    MmaU8S8(d, a, b);
  }
  for (int i = 0; i < 4; ++i) args.d[(group + i / 2 * 8) * 8 + Lane() % 4 * 2 + i % 2] = d[i];
}

struct CopyShared {
  alignas(16) std::uint32_t words[2][64][4];
};

KVCACHE_KERNEL(language_copy, LanguageCopyArgs, 64) {
  CopyShared& shared = SharedMemory<CopyShared>();
  for (int group = 0; group < 2; ++group) {
    AsyncCopy16(shared.words[group][Thread()], args.from + (group * 64 + Thread()) * 4);
    AsyncCommit();
  }
  AsyncWait<1>();
  BlockBarrier();
  for (int i = 0; i < 4; ++i) args.to[Thread() * 4 + i] = shared.words[0][63 - Thread()][i];
  AsyncWait<0>();
  BlockBarrier();
  for (int i = 0; i < 4; ++i) {
    args.to[(64 + Thread()) * 4 + i] = shared.words[1][63 - Thread()][i];
  }
}

KVCACHE_KERNEL(language_lanes, LanguageLanesArgs, 64) {
  const float x = args.x[Thread()];
  args.votes[Thread()] = Ballot(x > 0.0f);
  args.neighbors[Thread()] = Shuffle(x, (Lane() + 1) % 32);
  args.halves[Thread()] = ToHalf(FromHalf(ToHalf(x)));
  args.dots[Thread()] = Dp4a(BitsOf(x), BitsOf(x), Thread());
}

struct alignas(8) WordsOf8 {
  std::uint32_t at[2];
};
struct alignas(16) WordsOf16 {
  std::uint32_t at[4];
};

KVCACHE_KERNEL(language_words, LanguageWordsArgs, 64) {
  const std::uint32_t* const from = args.words + Thread() * 4;
  const auto byte = LoadOnly(reinterpret_cast<const std::uint8_t*>(from) + 1);
  const auto half = LoadOnly(reinterpret_cast<const std::uint16_t*>(from) + 3);
  const WordsOf8 two = LoadOnly(reinterpret_cast<const WordsOf8*>(from) + 1);
  const WordsOf16 four = LoadOnly(reinterpret_cast<const WordsOf16*>(from));
  args.sums[Thread()] = byte + half + LoadOnly(from + 2) + two.at[0] + 3 * two.at[1] +
                        5 * four.at[0] + 7 * four.at[1] + 11 * four.at[2] + 13 * four.at[3];
  args.bytes[Thread()] = BytePermute(from[0], from[1], args.selectors[Thread()]);
}

}  // namespace kvcache::cuda
