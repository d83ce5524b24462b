// The functions of the language that all lanes of a warp reach.
#include <cstring>
#include <string>

#include "backend/cuda/shim/block_runner-inl.h"
#include "backend/cuda/shim/kernel_calls.h"
#include "backend/cuda/shim/thread_state.h"

namespace kvcache::cuda {

int Thread() {
  return shim::current.thread;
}
int Lane() {
  return shim::current.thread % 32;
}
int Warp() {
  return shim::current.thread / 32;
}
int BlockX() {
  return shim::current.block_x;
}
int BlockY() {
  return shim::current.block_y;
}
int BlockZ() {
  return shim::current.block_z;
}
int GridX() {
  return shim::current.grid_x;
}

void WaitForEarlier() {
  shim::BlockRunner::Running().WaitForEarlier();
}

namespace shim {
namespace {

void CompleteBarrier(WarpMeeting& /*meeting*/) {
  BlockRunner::Running().AdvanceWarp(current.thread / 32);
}

void CompleteShuffleXor(WarpMeeting& meeting) {
  for (int lane = 0; lane < 32; ++lane) {
    meeting.results[lane][0] = meeting.given[lane ^ meeting.given[lane][1]][0];
  }
}

void CompleteShuffle(WarpMeeting& meeting) {
  for (int lane = 0; lane < 32; ++lane) {
    meeting.results[lane][0] = meeting.given[meeting.given[lane][1]][0];
  }
}

void CompleteBallot(WarpMeeting& meeting) {
  std::uint32_t votes = 0;
  for (int lane = 0; lane < 32; ++lane) votes |= meeting.given[lane][0] << lane;
  for (int lane = 0; lane < 32; ++lane) meeting.results[lane][0] = votes;
}

// given: a[0 … 3], b[0 … 1], d[0 … 3], in the fragments that kernel.h describes.
template <class A>
void CompleteMma(WarpMeeting& meeting) {
  std::int16_t a[16][32];
  std::int16_t b[8][32];  // its columns
  for (int lane = 0; lane < 32; ++lane) {
    const std::uint32_t* const given = meeting.given[lane];
    const int group = lane / 4;
    const int column = lane % 4 * 4;
    for (int i = 0; i < 4; ++i) {
      a[group][column + i] = static_cast<A>(given[0] >> (8 * i));
      a[group + 8][column + i] = static_cast<A>(given[1] >> (8 * i));
      a[group][column + 16 + i] = static_cast<A>(given[2] >> (8 * i));
      a[group + 8][column + 16 + i] = static_cast<A>(given[3] >> (8 * i));
      b[group][column + i] = static_cast<std::int8_t>(given[4] >> (8 * i));
      b[group][column + 16 + i] = static_cast<std::int8_t>(given[5] >> (8 * i));
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const std::int16_t* const row = a[lane / 4 + i / 2 * 8];
      const std::int16_t* const column = b[lane % 4 * 2 + i % 2];
      std::int32_t sum = 0;
      for (int k = 0; k < 32; ++k) sum += row[k] * column[k];
      meeting.results[lane][i] = meeting.given[lane][6 + i] + static_cast<std::uint32_t>(sum);
    }
  }
}

constexpr WarpMeeting::Kind kBarrier = {"WarpBarrier", &CompleteBarrier};
constexpr WarpMeeting::Kind kShuffleXor = {"ShuffleXor", &CompleteShuffleXor};
constexpr WarpMeeting::Kind kShuffle = {"Shuffle", &CompleteShuffle};
constexpr WarpMeeting::Kind kBallot = {"Ballot", &CompleteBallot};
constexpr WarpMeeting::Kind kMmaS8 = {"MmaS8", &CompleteMma<std::int8_t>};
constexpr WarpMeeting::Kind kMmaU8S8 = {"MmaU8S8", &CompleteMma<std::uint8_t>};

void CheckLane(const char* what, int value, Site site) {
  if (value >= 0 && value < 32) return;
  BlockRunner::Running().Fail(
      {.site = site,
       .text = std::string(what) + " is " + std::to_string(value) + "; must be from 0 to 31"});
}

}  // namespace

std::byte* SharedBytes(std::size_t needed) {
  return BlockRunner::Running().SharedBytes(
      needed, reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)));
}

void BlockBarrier(Site site) {
  BlockRunner::Running().WaitForBlock(site);
}

void WarpBarrier(Site site) {
  BlockRunner::Running().MeetWarp(kBarrier, site, {});
}

std::uint32_t ShuffleXor(std::uint32_t value, int mask, Site site) {
  CheckLane("the mask of a shuffle", mask, site);
  return BlockRunner::Running().MeetWarp(kShuffleXor, site,
                                         {value, static_cast<std::uint32_t>(mask)})[0];
}

std::uint32_t Shuffle(std::uint32_t value, int lane, Site site) {
  CheckLane("the lane of a shuffle", lane, site);
  return BlockRunner::Running().MeetWarp(kShuffle, site,
                                         {value, static_cast<std::uint32_t>(lane)})[0];
}

std::uint32_t Ballot(bool value, Site site) {
  return BlockRunner::Running().MeetWarp(kBallot, site, {value ? 1U : 0U})[0];
}

Fragments Mma(bool a_is_signed, std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1, std::int32_t d0,
              std::int32_t d1, std::int32_t d2, std::int32_t d3, Site site) {
  const std::uint32_t* const sums = BlockRunner::Running().MeetWarp(
      a_is_signed ? kMmaS8 : kMmaU8S8, site,
      {a0, a1, a2, a3, b0, b1, static_cast<std::uint32_t>(d0), static_cast<std::uint32_t>(d1),
       static_cast<std::uint32_t>(d2), static_cast<std::uint32_t>(d3)});
  Fragments result;
  std::memcpy(result.d, sums, sizeof(result.d));
  return result;
}

}  // namespace shim
}  // namespace kvcache::cuda
