// Runs scripts on the causal cache and on the naive one, and compares all that can be seen.
//
// After every step: the code returned; each sequence's positions, and its bytes in each layer;
// which tokens share a cell; what each query sees, in closed form and through views with a mask;
// the cell table's invariants; the bytes allocated. After the last: that nothing leaked.
//
// Thread safety: none.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/causal_cache_impl.h"
#include "support/cache_script.h"
#include "support/naive_cache.h"
#include "support/reference_backend.h"

namespace kvcache::testing {

struct DriverSetup {
  CacheOptions options;
  CacheConfig config;
  bool can_shift = true;

  std::int64_t cells() const;  // that tokens can have
};
std::string ToText(const DriverSetup& setup);

class CacheDriver {
 public:
  static constexpr int kLayers = 3;

  explicit CacheDriver(const DriverSetup& setup);

  // Runs one step on both. The first difference, or nothing.
  std::optional<std::string> Step(const ScriptStep& step);
  // Closes the cache, whatever it is doing.
  std::optional<std::string> Finish();

  const NaiveCache& naive() const { return naive_; }
  const DriverSetup& setup() const { return setup_; }
  // Did the failure that the last step asked for happen?
  bool last_step_failed() const { return fired_; }

 private:
  using Difference = std::optional<std::string>;

  Status RunForward(const ScriptStep& step, ForwardMode mode, StatusCode& expected);
  Status PutLayer(const std::vector<TestToken>& tokens, int layer);
  Status RunRemove(const ScriptStep& step, StatusCode& expected);
  Difference CheckCall(const Status& status, StatusCode expected) const;

  Difference CheckAll();
  Difference CheckInvariants() const;
  Difference CheckSequences();
  Difference CheckBytes(const LayerKv& storage, int layer, std::int32_t cell,
                        const NaiveToken& token) const;
  Difference CheckResume() const;
  Difference CheckMemory() const;
  Difference CheckPass();
  Difference CheckClosedForm() const;
  Difference CheckViews(int layer);
  std::vector<std::int32_t> ExpectedCells(const NaiveCache::Query& query) const;

  DriverSetup setup_;
  ReferenceBackend backend_;
  std::unique_ptr<CausalCache> cache_;
  NaiveCache naive_;
  bool written_[kLayers] = {};  // has the layer memory?
  std::uint32_t next_content_ = 1;
  bool fired_ = false;
};

struct ScriptFailure {
  std::size_t step = 0;
  std::string what;
};
std::optional<ScriptFailure> RunScript(const DriverSetup& setup, const Script& script);

}  // namespace kvcache::testing
