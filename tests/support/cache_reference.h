// The conformance kit's seam: a cache kind and its naive reference, side by side.
//
// A twin makes the real cache, answers every call by definition, runs what a model does inside a
// pass on both, and compares all that can be seen. CacheDriver (cache_driver.h) runs scripts
// over any reference; script_random.h makes them up and shrinks those that fail.
//
// To check a kind of your own, write its twin: causal_reference.h is the longest there is,
// encoder_reference.h a short one, examples/custom_kind a whole program. To check a backend of your
// own, give the driver that instead of the reference one.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/cache.h"
#include "support/cache_harness.h"
#include "support/cache_script.h"
#include "support/reference_backend.h"

namespace kvcache::testing {

// The first difference found, or nothing.
using Difference = std::optional<std::string>;

// What is common to the references of one driver.
struct ReferenceSetup {
  CacheOptions options;
  CacheConfig config;
};

class CacheReference {
 public:
  virtual ~CacheReference() = default;

  // The real cache, not yet configured. The twin keeps a pointer; the caller owns it. Once.
  virtual std::unique_ptr<Cache> MakeCache(ReferenceBackend& backend) = 0;

  // --- by definition: the code that each call must return; nothing changes
  virtual StatusCode Prepare(const TestBatch& batch, ForwardMode mode) const = 0;
  virtual StatusCode CheckAccept(const std::vector<int>& last) const = 0;
  virtual StatusCode CheckCopy(int src, int dst, Position length) const = 0;
  virtual StatusCode CheckRemove(int sequence, Position begin, Position end) const = 0;
  virtual bool CanResume(int sequence, Position position) const = 0;
  // Could Remove(sequence, length, end) make `length` tokens of it, to go on from, once prepared?
  // REQUIRES: length > 0.
  virtual bool CanGoBackTo(int sequence, Position length) const = 0;

  // --- the calls themselves, on the naive one alone. REQUIRES: the check said kOk.
  virtual void Begin(const TestBatch& batch, ForwardMode mode) = 0;
  virtual void SetNonCausal(const std::vector<int>& queries) = 0;
  virtual void Accept(const std::vector<int>& last) = 0;
  virtual void Copy(int src, int dst, Position length) = 0;
  virtual void Remove(int sequence, Position begin, Position end) = 0;
  virtual void PrepareRestore(int sequence, Position length) = 0;  // what the real one chose
  virtual void EndPass() = 0;

  // What a model does in a pass that has begun, through `cache` (a wrapper, perhaps) and on the
  // naive one: `step` says for which layers. The first error.
  virtual Status RunPass(Cache& cache, const TestBatch& batch, const ScriptStep& step) = 0;

  // Compares what can be seen. `cache` is that which MakeCache made.
  virtual Difference Check() = 0;

  // How many positions of the sequence are known, for the scripts' sake.
  virtual Position length(int sequence) const = 0;
  // The sequence of each token of a pass of drafts; empty in others. For the scripts' sake, too.
  virtual std::vector<int> drafts() const = 0;
  // What scripts ought to reach: shared tokens, a full cache, tokens that were let go of, restored
  // states, whatever matters to the kind. Bits; see Reach.
  virtual unsigned coverage() const = 0;
  // Does a pass need as many tokens of each sequence, side by side?
  virtual bool wants_even_batches() const { return false; }
};

// Bits of CacheReference::reached.
enum Coverage : unsigned {
  kCoverShared = 1,    // some token is seen by two sequences
  kCoverFull = 2,      // no cell is free
  kCoverEvicted = 4,   // a sequence's first tokens are gone
  kCoverRestored = 8,  // a state was restored
  kCoverTorn = 16,     // a pass broke off
  kCoverForked = 32,   // two drafts follow the same token
};

// The layers that every twin writes, and their shapes. The last one has V in K.
inline constexpr int kTestLayers = 3;
const KvShape& TestShape(int layer);
// The type that the layer's values are kept in: that of K where they are in K.
DType ValueType(const ReferenceSetup& setup, int layer);
// Is the layer among those that the step puts?
bool Chosen(const ScriptStep& step, int layer);

// The code for AcceptDrafts(last) after a pass of these drafts.
StatusCode CheckChosen(const std::vector<int>& drafts, const std::vector<int>& last);

std::string At(int sequence, Position position);
std::vector<float> RoundedAll(DType type, std::vector<float> values);

}  // namespace kvcache::testing
