// Compares the shadow of one cell with a list of all accesses, on random accesses and barriers.
#include "backend/cuda/shim/shadow.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvcache::cuda::shim::shadow_test {
namespace {

constexpr int kWarps = 3;

// An access as a model keeps it: where it was among launches, blocks and barriers.
struct Access {
  int launch;
  int block;
  int block_barriers;
  int warp_barriers;  // of the thread's warp, since the block began
  int thread;
  bool is_write;
};

template <Memory kMemory>
class Trace {
 public:
  explicit Trace(unsigned seed) : random_(seed) { BeginLaunch(); }

  // Runs random steps until both see an error. Returns false if they do not agree.
  bool Agree(int steps) {
    for (int i = 0; i < steps; ++i) {
      const int step = Draw(40);
      if (step == 0) BeginLaunch();
      if (step == 1) BeginBlock();
      if (step == 2) BlockBarrier();
      if (step == 3 || step == 4) WarpBarrier(Draw(kWarps));
      if (step < 5) continue;
      // Few threads write, and few lanes of a warp take part, so that traces are long.
      const Access access = {launch_,
                             block_,
                             block_barriers_,
                             0,
                             Draw(kWarps) * 32 + Draw(3),
                             step < 5 + write_weight_};
      const bool expected = Conflicts(access);
      if (Faults(access) != expected) return false;
      if (expected) return true;
    }
    return true;
  }

 private:
  int Draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  void BeginLaunch() {
    ++launch_;
    clock_.launch = ++stamp_;
    write_weight_ = Draw(6);
    BeginBlock();
  }
  void BeginBlock() {
    ++block_;
    clock_.block = ++stamp_;
    block_barriers_ = -1;
    written_ = false;
    BlockBarrier();
  }
  void BlockBarrier() {
    ++block_barriers_;
    clock_.barrier = ++stamp_;
    for (int warp = 0; warp < kWarps; ++warp) {
      warp_stamps_[warp] = stamp_;
      warp_barriers_[warp] = 0;
    }
  }
  void WarpBarrier(int warp) {
    warp_stamps_[warp] = ++stamp_;
    ++warp_barriers_[warp];
  }

  // Whether an access before is not ordered before `access`, or nothing is there to read.
  bool Conflicts(Access access) {
    access.warp_barriers = warp_barriers_[access.thread / 32];
    if (kMemory == Memory::kShared && !access.is_write && !written_) return true;
    written_ = written_ || access.is_write;
    for (const Access& before : accesses_) {
      if (before.launch != access.launch || (!before.is_write && !access.is_write)) continue;
      if (before.block != access.block) {
        if (kMemory == Memory::kGlobal) return true;
        continue;
      }
      if (before.thread == access.thread || before.block_barriers != access.block_barriers)
        continue;
      const bool same_warp = before.thread / 32 == access.thread / 32;
      if (!same_warp || before.warp_barriers == access.warp_barriers) return true;
    }
    accesses_.push_back(access);
    return false;
  }

  bool Faults(const Access& access) {
    clock_.warp = warp_stamps_[access.thread / 32];
    clock_.mine = Record{clock_.warp} << 32 | static_cast<Record>(access.thread) << kThreadShift;
    const Fault fault = access.is_write ? Shadow<kMemory>::Write(cell_, clock_, clock_.mine)
                                        : Shadow<kMemory>::Read(cell_, clock_, clock_.mine);
    return fault != Fault::kNone;
  }

  std::mt19937 random_;
  std::vector<Access> accesses_;
  int launch_ = 0;
  int block_ = 0;
  int block_barriers_ = 0;
  int warp_barriers_[kWarps] = {};
  bool written_ = false;
  int write_weight_ = 0;

  std::uint32_t stamp_ = 0;
  std::uint32_t warp_stamps_[kWarps] = {};
  Clock clock_;
  Cell cell_ = {};
};

TEST(Shadow, FindsWhatAListOfAccessesFindsInGlobalMemory) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    ASSERT_TRUE(Trace<Memory::kGlobal>(seed).Agree(300)) << "seed " << seed;
  }
}

TEST(Shadow, FindsWhatAListOfAccessesFindsInSharedMemory) {
  for (unsigned seed = 0; seed < 20000; ++seed) {
    ASSERT_TRUE(Trace<Memory::kShared>(seed).Agree(300)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvcache::cuda::shim::shadow_test
