#include "support/internal/inspected_causal.h"

#include <map>
#include <set>
#include <utility>

namespace kvcache::testing {

std::unique_ptr<Cache> InspectedCausal::MakeCache(ReferenceBackend& backend) {
  auto cache = std::make_unique<CausalCache>(Options(backend));
  LookAt(*cache);
  return cache;
}

void InspectedCausal::LookAt(CausalCache& cache) {
  cache_ = &cache;
  SetCache(cache);
}

Difference InspectedCausal::CheckInternals() {
  if (Difference difference = CheckInvariants()) return difference;
  return CheckSequences();
}

Difference InspectedCausal::CheckInvariants() const {
  const CellTable& table = cache_->cells();
  std::vector<std::int32_t> ref_count(table.cells(), 0);
  for (int s = 0; s < table.sequences(); ++s) {
    const auto runs = table.history(SequenceId{s}).runs();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (runs[i].length <= 0 || runs[i].cell < 0 ||
          runs[i].cell + runs[i].length > table.cells()) {
        return "sequence " + std::to_string(s) + " has a run that is empty or outside of the cells";
      }
      if (i > 0 && runs[i].position < RunList::End(runs[i - 1])) return "runs overlap";
      if (i > 0 && Continues(runs[i - 1], runs[i])) return "runs are not merged";
      for (int j = 0; j < runs[i].length; ++j) ++ref_count[runs[i].cell + j];
    }
  }
  if (table.drafts().size() != model().drafts().size()) {
    return std::to_string(table.drafts().size()) + " drafts, expected " +
           std::to_string(model().drafts().size());
  }
  for (const std::int32_t cell : table.drafts()) ++ref_count[cell];
  std::int64_t used = 0;
  for (const std::int32_t count : ref_count) used += count > 0;
  if (used != model().used_cells()) {
    return std::to_string(used) + " cells used, expected " + std::to_string(model().used_cells());
  }
  used = 0;
  for (const CellHold* hold = table.holds().oldest(); hold != nullptr; hold = hold->newer) {
    for (const HistoryRun& run : hold->runs.runs()) {
      for (int j = 0; j < run.length; ++j) ++ref_count[run.cell + j];
    }
  }
  for (std::int32_t cell = 0; cell < table.cells(); ++cell) {
    if (table.ref_count(cell) != ref_count[cell] ||
        table.free().Contains(cell) != (ref_count[cell] == 0)) {
      return "cell " + std::to_string(cell) + " has " + std::to_string(table.ref_count(cell)) +
             " references, " + std::to_string(ref_count[cell]) + " runs, and is " +
             (table.free().Contains(cell) ? "free" : "not free");
    }
    used += ref_count[cell] > 0;
  }
  if (table.cells() != cells()) {
    return std::to_string(table.cells()) + " cells, expected " + std::to_string(cells());
  }
  if (used + table.free_cells() != table.cells()) {
    return std::to_string(used) + " cells used or held, " + std::to_string(table.free_cells()) +
           " free of " + std::to_string(table.cells());
  }
  return {};
}

Difference InspectedCausal::CheckSequences() {
  std::map<std::int32_t, const ReferenceToken*> token_of;  // by cell
  std::set<const ReferenceToken*> tokens;
  for (int s = 0; s < model().sequences(); ++s) {
    std::size_t positions = 0;
    for (const HistoryRun& run : cache_->cells().history(SequenceId{s}).runs()) {
      positions += run.length;
    }
    if (positions != model().sequence(s).size()) {
      return "sequence " + std::to_string(s) + " holds " + std::to_string(positions) +
             " positions, expected " + std::to_string(model().sequence(s).size());
    }
    for (const auto& [position, token] : model().sequence(s)) {
      const std::int32_t cell = cache_->cells().history(SequenceId{s}).CellOf(position);
      if (cell == RunList::kNoCell) return At(s, position) + " is missing";
      const bool first_time = tokens.insert(token.get()).second;
      if (token_of.emplace(cell, token.get()).second != first_time ||
          token_of[cell] != token.get()) {
        return At(s, position) + " is in cell " + std::to_string(cell) +
               "; exactly the copies of a token must share a cell";
      }
      if (Difference difference = CheckLayers(cell, *token)) {
        return At(s, position) + ": " + *difference;
      }
    }
  }
  return {};
}

}  // namespace kvcache::testing
