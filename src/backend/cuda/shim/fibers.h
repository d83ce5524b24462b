// Stacks on which the threads of a block run, and the switching between them.
//
// Thread safety: one host thread uses an object, and runs its fibers.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace kvcache::cuda::shim {

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  std::byte* stack = nullptr;  // the lowest byte
  std::byte* top = nullptr;
};

// Fibers run `entry` from its beginning when they are first resumed, and never return from it.
class Fibers {
 public:
  using Entry = void (*)();
  static constexpr std::size_t kStackBytes = std::size_t{256} << 10;

  explicit Fibers(Entry entry) : entry_(entry) {}
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Returns a fiber that does not run. It stays at the place where it left off.
  Fiber* Take();
  void Return(Fiber* fiber) { free_.push_back(fiber); }

  // Leaves the running fiber, or the host's stack if it is `main()`, and goes on with `to`.
  static void Switch(Fiber* from, Fiber* to) {
    KeepPlace(boost::context::detail::jump_fcontext(to->context, from));
  }
  Fiber* main() { return &main_; }
  const Fiber* main() const { return &main_; }

  // Forgets where the fibers are: all start anew, and none is taken. REQUIRES: none runs.
  void Reset();

  // The place of an address among the stacks: which fiber's, or null.
  const Fiber* FindStack(std::uintptr_t address) const;

 private:
  // The fiber that resumes another sends itself, so that the other one writes down where it stopped.
  static void KeepPlace(boost::context::detail::transfer_t from) {
    static_cast<Fiber*>(from.data)->context = from.fctx;
  }
  void Begin(Fiber& fiber);

  Entry entry_;
  Fiber main_;
  std::vector<std::unique_ptr<Fiber>> all_;
  std::vector<Fiber*> free_;
};

}  // namespace kvcache::cuda::shim
