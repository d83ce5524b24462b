// Runs a composed pass and holds its logits.
//
// Thread safety: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/scheduler/pass/composed_pass.h"

namespace kvcache {

class PassRunner {
 public:
  // Adds the seconds of passes to `sum`. All must outlive it. Throws std::bad_alloc.
  PassRunner(Engine& engine, const std::function<double()>& clock, double& sum);

  // Runs the pass, and computes the logits of its rows that are drawn from. Errors: the engine's; kOutOfMemory.
  Status Run(ComposedPass& pass);
  // Returns the logits of a request's last token in the pass (0), or of a draft behind that (1, 2, …).
  std::span<const float> Logits(const PassRows& of, std::size_t row = 0) const;
  // Returns kCorrupt if logits after `length` tokens are no numbers.
  Status Check(std::span<const float> logits, Position length) const;

  // Returns the seconds of the last pass.
  double seconds() const { return seconds_; }
  // Adds the time that the cache takes to keep what the pass wrote.
  void AddSecondsOfCommit(double seconds);

  // Returns the bytes of so many rows of logits, or of the buffer if that has more, beyond those that
  // Engine::WorkspaceBytes counts.
  std::int64_t ExtraBytes(std::size_t rows = 0) const;
  // Gives the buffer's memory back, if it has more than the workspace.
  void Release();

 private:
  // Returns EngineBatch::axes; empty if they are positions. Throws std::bad_alloc.
  std::span<const Position> AxesOf(const ComposedPass& pass);
  Status ReserveLogits(ComposedPass& pass);

  Engine& engine_;
  const std::function<double()>& clock_;
  double& sum_;
  double seconds_ = 0.0;
  std::vector<Position> axes_;      // [batch, 3], of passes that need them
  std::vector<std::int32_t> rows_;  // with logits: batch indices
  std::vector<float> logits_;       // [vocabulary, rows]; grows to the most rows of a pass so far
};

}  // namespace kvcache
