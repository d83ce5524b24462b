#!/usr/bin/env python3
"""Plants bugs in a copy of the caches and checks that the random scripts find each of them.

Usage: tests/model/mutate.py [--steps 40000] [--only NAME] [--from NUMBER]

Each mutation replaces one piece of text of one file in a scratch copy; the work tree stays
unchanged. The model test of the mutation's cache kind must then fail within --steps steps.
Otherwise the mutation has survived, and the script exits with 1. It is an error if the text does
not occur exactly once: update the list when the code changes. Needs g++ and GoogleTest, and takes
about ten minutes.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLAGS = ["-std=c++20", "-O1", "-Iinclude", "-Isrc", "-Itests"]

# The sources to compile again for a mutation of a header.
HEADER_USERS = {"include/kvcache/visibility.h": ["src/cache/history_mask.cc"]}

# Name, file, text, replacement, and the kind of cache whose scripts must find the bug (default:
# Full).
MUTATIONS = [
    ("truncation keeps one token too many", "src/cache/run_list.cc",
     "runs_.back() = Clip(runs_.back(), 0, length)",
     "runs_.back() = Clip(runs_.back(), 0, length + 1)"),
    ("truncation frees one cell too few", "src/cache/cell_table.cc",
     "Clip(runs[i], length, kEndOfSequence)", "Clip(runs[i], length + 1, kEndOfSequence)"),
    ("copy-on-write missed", "src/cache/cell_table.cc",
     "if (ref_counts_[cell] > 1) {", "if (ref_counts_[cell] > 2) {"),
    ("copy-on-write in the wrong direction", "src/cache/cell_table.cc",
     "AddCopy(removal.copies, cell, own)", "AddCopy(removal.copies, own, cell)"),
    ("copy-on-write keeps the old reference", "src/cache/cell_table.cc",
     "      ref_counts_.Add(cell, -1);\n", ""),
    ("cells for copies counted one too low", "src/cache/cell_table.cc",
     "if (CountShared(id, end) <= cells_without_drafts()) return",
     "if (CountShared(id, end) <= cells_without_drafts() + 1) return"),
    ("one cell leaks", "src/cache/cell_table.cc",
     "for (std::int32_t i = cell; i < cell + length; ++i) {",
     "for (std::int32_t i = cell; i + 1 < cell + length; ++i) {"),
    ("shared prefix without references", "src/cache/cell_table.cc",
     "    ref_counts_.AddRange(shared.cell, shared.cell + shared.length, 1);\n", ""),
    ("copy keeps the target's old tokens", "src/cache/cell_table.cc",
     "  Truncate(dst, 0);\n", "  histories_[Index(dst)].Clear();\n"),
    ("shared prefix one token too long", "src/cache/cell_table.cc",
     "Clip(run, 0, length);\n    if", "Clip(run, 0, length + (length < 1000));\n    if"),
    ("stale free bit", "src/cache/free_set.cc",
     "word &= ~(std::uint64_t{1} << (index & 63));\n",
     "if (level == 0) word &= ~(std::uint64_t{1} << (index & 63));\n"),
    ("free bit not found again", "src/cache/free_set.cc",
     "if (!was_empty) return;", "return;"),
    ("search does not wrap around the end", "src/cache/cell_table.cc",
     "cell != FreeSet::kNone ? cell : free_.NextFrom(0)",
     "cell != FreeSet::kNone ? cell : position % cells()"),
    ("runs not merged to the right", "src/cache/run_list.cc",
     "const bool joins_next = Continues(added, *next);", "const bool joins_next = false;"),
    ("padding: last cell not rounded up", "src/cache/history_mask.cc",
     "(last / padding + 1) * padding", "last + 1"),
    ("padding: first cell not rounded down", "src/cache/history_mask.cc",
     "first = first / padding * padding;", "first = first * 1;"),
    ("padding: one multiple too many", "src/cache/history_mask.cc",
     "(last / padding + 1) * padding", "(last / padding + 2) * padding"),
    ("padding: rows not rounded up", "src/cache/causal_cache.cc",
     "RoundUp(pass_.size(), storage_.config().batch_padding)", "std::int64_t{pass_.size()}"),
    ("mask hides the query's own token", "include/kvcache/visibility.h",
     "kEndOfSequence : position + 1", "kEndOfSequence : position"),
    ("mask shows the next token", "include/kvcache/visibility.h",
     "kEndOfSequence : position + 1", "kEndOfSequence : position + 2"),
    ("mask of the previous pass", "src/cache/causal_cache.cc",
     "  prepared_ = Prepared::kNothing;\n  masked_cells_ = {};\n",
     "  prepared_ = Prepared::kNothing;\n"),
    ("put in sorted order", "src/cache/forward_pass.cc",
     "cell_of_[token.index] = cells.Claim(", "cell_of_[&token - ordered_.data()] = cells.Claim("),
    ("queries of the wrong sequence", "src/cache/forward_pass.cc",
     "history_of_query_[ordered_[i].index] =", "history_of_query_[i] ="),
    ("position held twice", "src/cache/causal_cache.cc",
     "if (i > 0 && tokens[i - 1].sequence == sequence && tokens[i - 1].position == position) {",
     "if (false) {"),
    ("full cache detected too late", "src/cache/causal_snapshot.cc",
     "if (available >= needed || oldest_", "if (available + 1 >= needed || oldest_"),
    ("full cache detected too early", "src/cache/causal_snapshot.cc",
     "return available >= needed ? Status", "return available > needed ? Status", "Window"),
    ("reserve pass writes", "src/cache/causal_cache.cc",
     "if (pass_.reserving()) return Status::Ok();",
     "if (pass_.reserving()) return storage_.backend().StoreKv(storage, k, v,\n"
     "    std::vector<CellRun>{{0, pass_.size()}});"),
    ("resume one position too far", "src/cache/causal_cache.cc",
     "position > history.length()) return false;",
     "position > history.length() + 1) return false;"),
    ("pass outlives a removal", "src/cache/causal_cache.cc",
     "    ChangeLength(sequence, begin);\n  }\n  EndPass();\n",
     "    ChangeLength(sequence, begin);\n  }\n"),
    ("keys rotated the wrong way", "src/cache/causal_cache.cc",
     "removal.shifted, begin - end)", "removal.shifted, end - begin)"),
    ("keys of one layer not rotated", "src/cache/causal_cache.cc",
     "++layer) {\n    const LayerKv* storage = storage_.layers().Find(layer);\n    if (storage == nullptr",
     "layer += 2) {\n    const LayerKv* storage = storage_.layers().Find(layer);\n    if (storage == nullptr"),
    ("middle removal without shift function", "src/cache/causal_cache.cc",
     "if (!causal_.shift_keys) {", "if (!causal_.shift_keys && begin > 0) {"),
    ("removal of the tail treated as a shift", "src/cache/causal_cache.cc",
     "return begin < end && end < cells_.history(sequence).length();",
     "return begin < end && end <= cells_.history(sequence).length();"),
    ("layer kept after a refused allocation", "src/cache/layer_store.cc",
     "KVCACHE_ASSIGN_OR_RETURN(layer.v, backend_->Allocate(layer.storage.VBytes()));",
     "auto v = backend_->Allocate(layer.storage.VBytes());\n"
     "  if (!v.ok()) { layers_.resize(9); layers_[8] = std::move(layer); return v.status(); }\n"
     "  layer.v = std::move(*v);"),
    ("transposed values from the wrong cell", "src/cache/layer_views.cc",
     "view.data += cells.cell * view.stride_bytes[0];", "view.data += cells.cell;"),
    # windows and chunks
    ("window: one token too wide", "include/kvcache/visibility.h",
     "position - visibility.window + 1", "position - visibility.window", "Window"),
    ("window: one token too narrow", "include/kvcache/visibility.h",
     "position - visibility.window + 1", "position - visibility.window + 2", "Window"),
    ("window: missing in closed form", "src/cache/forward_pass.cc",
     "  visibility_.window = span_.window;\n", "", "Window"),
    ("chunk: missing in closed form", "src/cache/forward_pass.cc",
     "  visibility_.chunk = span_.chunk;\n", "", "Chunk"),
    ("chunk: begins one too late", "include/kvcache/visibility.h",
     "position - position % visibility.chunk);", "position - position % visibility.chunk + 1);",
     "Chunk"),
    ("eviction one too many", "src/cache/window_eviction.cc",
     "PlanOne(cells, id, std::int64_t{position} - retained_tokens_ + 1);",
     "PlanOne(cells, id, std::int64_t{position} - retained_tokens_ + 2);", "Window"),
    ("eviction one too few", "src/cache/window_eviction.cc",
     "PlanOne(cells, id, std::int64_t{position} - retained_tokens_ + 1);",
     "PlanOne(cells, id, std::int64_t{position} - retained_tokens_);", "Window"),
    ("eviction from the highest position of the batch", "src/cache/window_eviction.cc",
     "if (i > 0 && tokens[i - 1].sequence == id) continue;",
     "if (i + 1 < tokens.size() && tokens[i + 1].sequence == id) continue;", "Window"),
    ("other sequences never evicted", "src/cache/window_eviction.cc",
     "  for (const SequenceId id : in_batch_) MarkGrown(id);\n", "", "Window"),
    ("other sequences keep one too few", "src/cache/window_eviction.cc",
     "std::int64_t{cells.history(id).length()} - retained_tokens_ + 1",
     "std::int64_t{cells.history(id).length()} - retained_tokens_ + 2", "Window"),
    ("a copy is never evicted", "src/cache/causal_cache.cc",
     "    eviction_.MarkGrown(dst);\n", "", "Window"),
    ("retained_tokens ignored", "src/cache/window_eviction.cc",
     "causal.retained_tokens > 0 ? causal.retained_tokens : causal.window", "causal.window", "WindowWithRetained"),
    ("no cell for the stop token", "src/cache/window_eviction.cc",
     "causal.window + 1LL", "causal.window + 0LL", "Window"),
    ("retaining the whole capacity evicts", "src/cache/window_eviction.cc",
     "retained >= options.capacity ? 0", "retained > options.capacity ? 0", "WindowWithRetained"),
    ("no cells for the batch in addition to the window", "src/cache/causal_cache.cc",
     "sequences * retained_tokens + options.max_batch;", "sequences * retained_tokens + options.max_batch - 1;",
     "Window"),
    ("evicted cells counted once too often", "src/cache/cell_table.cc",
     "part.cell + part.length; ++i) {\n        ref_counts_.Add(i, by);\n"
     "        unused += ref_counts_[i] == 0;",
     "part.cell + part.length; ++i) {\n        ref_counts_.Add(i, by);\n"
     "        unused += ref_counts_[i] <= 1;", "Window"),
    ("a refused eviction keeps its counts", "src/cache/cell_table.cc",
     "  const std::int32_t freed = AddReferences(evictions, -1);\n"
     "  AddReferences(evictions, 1);\n",
     "  const std::int32_t freed = AddReferences(evictions, -1);\n", "Window"),
    ("an evicted run is not cut", "src/cache/run_list.cc",
     "runs_.front() = Clip(runs_.front(), begin, kEndOfSequence);", "(void)begin;", "Window"),
    ("an evicted cell is not released", "src/cache/cell_table.cc",
     "const HistoryRun dropped = Clip(run, 0, begin);",
     "const HistoryRun dropped = Clip(run, 0, begin - 1);", "Window"),
    ("resume with one token missing", "src/cache/causal_cache.cc",
     "std::max(0, position - causal_.window + 1);", "std::max(0, position - causal_.window + 2);",
     "Window"),
    ("resume needs one token too many", "src/cache/causal_cache.cc",
     "std::max(0, position - causal_.window + 1);", "std::max(0, position - causal_.window);",
     "Window"),
    ("non-causal queries outlive the pass", "src/cache/forward_pass.cc",
     "  DescribeVisibility();\n  visibility_.window",
     "  const auto kept = visibility_.bidirectional;\n  DescribeVisibility();\n"
     "  if (kept.size() == positions_.size()) visibility_.bidirectional = kept;\n"
     "  visibility_.window"),
    ("earlier non-causal queries stay", "src/cache/forward_pass.cc",
     "  std::fill_n(bidirectional_.begin(), size_, std::uint8_t{0});\n", ""),
    ("non-causal queries leave the mask unchanged", "src/cache/causal_cache.cc",
     "  pass_.SetNonCausal(except);\n  masked_cells_ = {};\n", "  pass_.SetNonCausal(except);\n"),
    # compaction
    ("compaction to the wrong hole", "src/cache/cell_compaction.cc",
     "piece.cell = next->to + (cell - next->from);", "piece.cell = next->to;"),
    ("compaction leaves references behind", "src/cache/cell_compaction.cc",
     "      ref_counts_.Add(from + i, -count);\n", ""),
    ("compaction skips the last layer's bytes", "src/cache/causal_cache.cc",
     "for (int layer = 0; layer < storage_.layers().size() && !plan.moves.empty(); ++layer) {",
     "for (int layer = 0; layer + 1 < storage_.layers().size() && !plan.moves.empty(); ++layer) {"),
    ("compaction changes metadata before bytes", "src/cache/causal_cache.cc",
     "  KVCACHE_ASSIGN_OR_RETURN(Compaction plan, cells_.PlanCompaction());\n",
     "  KVCACHE_ASSIGN_OR_RETURN(Compaction plan, cells_.PlanCompaction());\n"
     "  cells_.Apply(Compaction(plan));\n  KVCACHE_ASSIGN_OR_RETURN(plan, cells_.PlanCompaction());\n"),
    ("the pass outlives a compaction", "src/cache/causal_cache.cc",
     "  EndPass();\n  KVCACHE_ASSIGN_OR_RETURN(Compaction", "  KVCACHE_ASSIGN_OR_RETURN(Compaction"),
    # encoder
    ("output of a fork overwritten", "src/cache/encoder_cache.cc",
     "entries_.ref_count(output.entry) > 1", "entries_.ref_count(output.entry) > 2", "Encoder"),
    ("output leaks", "src/cache/encoder_cache.cc",
     "if (output.entry != kNone) entries_.Release(output.entry);", "", "Encoder"),
    ("reserve pass marks an output", "src/cache/encoder_cache.cc",
     "  if (mode_ == ForwardMode::kReserve) return Status::Ok();\n", "", "Encoder"),
    ("removal stops short of the item", "src/cache/encoder_cache.cc",
     "if (output.position < end) {", "if (output.position + 1 < end) {", "Encoder"),
    ("item does not move down", "src/cache/encoder_cache.cc",
     "output.position -= end - begin;", "", "Encoder"),
    ("fork shares an output behind its end", "src/cache/encoder_cache.cc",
     "source.position < length;", "source.position <= length;", "Encoder"),
    ("a partly stored output stays", "src/cache/encoder_cache.cc",
     "    Drop(member.sequence);\n    member.put = false;\n", "", "Encoder"),
    ("oldest item instead of the newest", "src/cache/encoder_cache.cc",
     "std::max(member.position, position) : position", "member.position : position", "Encoder"),
    ("wrong sequence selected", "src/cache/encoder_cache.cc",
     "current_ = static_cast<std::size_t>(&member - members_.data());", "current_ = 0;", "Encoder"),
    # recurrent
    ("stale checkpoint after going back", "src/cache/state_table.cc",
     "points.checkpoints.back().tokens > tokens) {",
     "points.checkpoints.back().tokens > tokens + 1) {", "Recurrent"),
    ("checkpoints too close", "src/cache/state_table.cc",
     "points.live.tokens - checkpoints.back().tokens < spacing",
     "points.live.tokens - checkpoints.back().tokens + 1 < spacing", "Recurrent"),
    ("checkpoint below the minimum", "src/cache/state_table.cc",
     "points.live.tokens - 1 < minimum", "points.live.tokens < minimum", "Recurrent"),
    ("newest checkpoint evicted first", "src/cache/state_table.cc",
     "Forget(checkpoints.front());\n    checkpoints.erase(checkpoints.begin());",
     "Forget(checkpoints.back());\n    checkpoints.pop_back();", "Recurrent"),
    ("checkpoint without a reference", "src/cache/state_table.cc",
     "checkpoints.push_back(points.live);\n  Share(points.live);",
     "checkpoints.push_back(points.live);", "Recurrent"),
    ("previous state never released", "src/cache/state_table.cc",
     "  Forget(of(id).before);\n", "  of(id).before = {};\n", "Recurrent"),
    ("fork takes a later state", "src/cache/state_table.cc",
     "point.known() && point.tokens <= length;", "point.known() && point.tokens <= length + 1;",
     "Recurrent"),
    ("checkpoints do not move down", "src/cache/state_table.cc",
     "    point.tokens -= end - begin;\n", "", "Recurrent"),
    ("a removed checkpoint stays", "src/cache/state_table.cc",
     "if (point.tokens <= end) return StatePoint{};",
     "if (point.tokens < end) return StatePoint{};", "Recurrent"),
    ("an incomplete pass is committed", "src/cache/recurrent_cache.cc",
     "if (--missing_ == 0 && !HasDrafts())", "if (--missing_ <= 1 && !HasDrafts())", "Recurrent"),
    ("an incomplete pass keeps its cells", "src/cache/recurrent_cache.cc",
     "for (const std::int32_t cell : to_) states_.Drop(cell);", "", "Recurrent"),
    ("write into the state that is read", "src/cache/recurrent_cache_views.cc",
     "store.Write(index, to_, flat)", "store.Write(index, from_, flat)", "Recurrent"),
    ("a truncation without PrepareRestore", "src/cache/recurrent_cache.cc",
     "prepared_[Index(sequence)] == begin) {\n    return Status::Ok();",
     "prepared_[Index(sequence)] >= begin) {\n    return Status::Ok();", "Recurrent"),
    ("a prepared restore outlives a pass", "src/cache/recurrent_cache.cc",
     "    prepared_[Index(id)] = kNotPrepared;\n", "", "Recurrent"),
    ("restore above the target", "src/cache/state_table.cc",
     "point.known() && point.tokens <= target", "point.known() && point.tokens <= target + 1",
     "Recurrent"),
    ("uneven batches have views", "src/cache/recurrent_cache_views.cc",
     "if (batch_.tokens_per_sequence() > 0) return", "return", "Recurrent"),
    ("a sequence in two places", "src/cache/recurrent_batch.cc",
     "if (member_of_[Index(id)] != kNone) {", "if (false) {", "Recurrent"),
    ("segments write the state that they read", "src/cache/recurrent_cache.cc",
     "return store.At(index, to_[place.index]);", "return store.At(index, from_[place.index]);",
     "Recurrent"),
    ("states are gathered in order of cells", "src/cache/state_store.cc",
     "Column(gathered, i)));", "Column(gathered, cells.size() - 1 - i)));", "Recurrent"),
    ("one state scattered twice", "src/cache/state_store.cc",
     "CopyValues(Column(state, i), View(layer, cells[i], 1))",
     "CopyValues(Column(state, 0), View(layer, cells[i], 1))", "Recurrent"),
    ("too many states", "src/cache/recurrent_cache.cc",
     "if (needed > most) {", "if (needed > most + 1) {", "Recurrent"),
    # drafts
    ("drafts outlive their pass", "src/cache/causal_cache.cc",
     "  cells_.DropDrafts();\n  acceptance_.Clear();\n  if (prepared_", "  if (prepared_"),
    ("drafts take cells from the next batch", "src/cache/causal_cache.cc",
     "const std::int32_t free = cells_.cells_without_drafts();",
     "const std::int32_t free = cells_.free_cells();"),
    ("drafts see their siblings", "src/cache/drafts.cc",
     "if (parent != kNone && leaves_[path_of_[parent]] == parent) {", "if (parent != kNone) {"),
    ("drafts see no history", "src/cache/forward_pass.cc",
     "path_runs_.insert(path_runs_.end(), kept.begin(), kept.end());", "(void)kept;"),
    ("drafts begin anywhere", "src/cache/causal_cache.cc",
     "CheckPositions(tokens) : CheckRoots(batch)", "CheckPositions(tokens) : Status::Ok()"),
    ("a draft follows one of another sequence", "src/cache/cache_checks.cc",
     "if (batch.sequences[parent] != batch.sequences[i]) {", "if (false) {"),
    ("overlapping moves in one call", "src/cache/draft_acceptance.cc",
     "if (!apart) calls_.push_back(moves_.size());\n", ""),
    ("a path moves the wrong way", "src/cache/draft_acceptance.cc",
     "if (to != from) Move(from, to);", "if (to != from) Move(to, from);"),
    ("accepted tokens keep their old cells", "src/cache/draft_acceptance.cc",
     "drafts.position(path[i]), to});", "drafts.position(path[i]), from});"),
    ("a path that does not ascend moves", "src/cache/draft_acceptance.cc",
     "const std::int32_t to = moves ? cells_[i] : from;", "const std::int32_t to = cells_[i];"),
    ("two paths of a sequence are accepted", "src/cache/drafts.cc",
     "if (sequence(chosen[j]) != sequence(chosen[i])) continue;", "continue;"),
    ("a path does not move in one layer", "src/cache/causal_cache.cc",
     "++layer) {\n    const LayerKv* const storage",
     "layer += 2) {\n    const LayerKv* const storage"),
    ("the pass outlives a failed move", "src/cache/causal_cache.cc",
     "    EndPass();\n    // kInvalidArgument would", "    // kInvalidArgument would"),
    ("a draft continues its sibling's segment", "src/cache/recurrent_batch.cc",
     "parent != i - 1 || children_[parent] != 1", "parent != i - 1", "Recurrent"),
    ("a child overwrites a state that a sibling reads", "src/cache/recurrent_batch.cc",
     "branch.parent != kNone && branch.next_sibling == kNone;",
     "branch.parent != kNone && branch.first_child == kNone;", "Recurrent"),
    ("strands share scratch states", "src/cache/recurrent_batch.cc",
     "  free_scratch_.clear();\n", "", "Recurrent"),
    ("children are visited in any order", "src/cache/recurrent_batch.cc",
     "    std::reverse(stack_.begin() + below, stack_.end());\n", "    (void)below;\n", "Recurrent"),
    ("an accepted path continues another sequence", "src/cache/recurrent_batch.cc",
     "StatePlace before{Kind::kBefore, static_cast<std::int32_t>(member)};",
     "StatePlace before{Kind::kBefore, 0 * static_cast<std::int32_t>(member)};", "Recurrent"),
    ("an accepted path takes in other drafts", "src/cache/recurrent_batch.cc",
     "if (starts || path[done] != path[done - 1] + 1) {", "if (starts) {",
     "Recurrent"),
    ("a pass of drafts advances the states", "src/cache/recurrent_cache.cc",
     "    if (drafts) continue;", "    if (false) continue;", "Recurrent"),
    ("a failed acceptance keeps its cells", "src/cache/recurrent_cache_drafts.cc",
     "    EndPass();\n    if (status.code() !=", "    if (status.code() !=", "Recurrent"),
    ("drafts of a pass that broke off get states", "src/cache/recurrent_cache_drafts.cc",
     "if (status.ok() && missing_ == 0) status", "if (status.ok()) status", "Recurrent"),
    ("one layer's accepted states are missing", "src/cache/recurrent_cache_drafts.cc",
     "for (std::size_t i = 0; i < recurrent_.layers.size(); ++i) {\n    const int index",
     "for (std::size_t i = 1; i < recurrent_.layers.size(); ++i) {\n    const int index", "Recurrent"),
    ("a prepared restore outlives an acceptance", "src/cache/recurrent_cache_drafts.cc",
     "    prepared_[Index(sequence)] = kNotPrepared;\n    states_", "    states_", "Recurrent"),
    ("accepted states have another length", "src/cache/recurrent_cache_drafts.cc",
     "batch_.drafts().position(token) + 1}", "batch_.drafts().position(token)}", "Recurrent"),
    ("inputs of drafts are too small", "src/cache/draft_inputs.cc",
     "held >= bytes", "held > 0", "Recurrent"),
    # wrapper
    ("the pass outlives another cache's failed move", "src/cache/wrapper_cache.cc",
     "      EndPass();\n      return refused", "      return refused", "SlidingAndFull"),
    ("forgotten unwind", "src/cache/wrapper_cache.cc",
     "return ForAll([&](Cache& cache) { return cache.PrepareForward(batch, mode); });",
     "return ForAll([&](Cache& cache) {\n"
     "      Status status = cache.PrepareForward(batch, mode);\n"
     "      if (status.ok() && &cache != caches_.back().get()) {\n"
     "        cache.BeginForward();\n"
     "        (void)cache.PrepareForward(batch, ForwardMode::kReserve).ok();\n"
     "      }\n"
     "      return status;\n"
     "    });", "SlidingAndFull"),
    ("caches restored to different lengths", "src/cache/wrapper_cache.cc",
     "agreeing = kept >= agreed ? agreeing + 1 : 1;", "agreeing = agreeing + 1;",
     "RecurrentAndSliding"),
    ("removal not checked in all caches", "src/cache/wrapper_cache.cc",
     "    KVCACHE_RETURN_IF_ERROR(CheckRemove(sequence, begin, end));\n", "",
     "RecurrentAndSliding"),
    ("resume if any cache can", "src/cache/wrapper_cache.cc",
     "return std::all_of(caches_.begin(), caches_.end(),", "return std::any_of(caches_.begin(), caches_.end(),",
     "SlidingAndFull"),
    ("another cache is selected", "src/cache/wrapper_cache.cc",
     "caches_.size() ? type : kNone;", "caches_.size() ? 0 : kNone;",
     "SlidingAndFull"),
    # Snapshots.
    ("a snapshot without references", "src/cache/cell_table.cc",
     "  for (const HistoryRun& run : hold.runs.runs()) {\n"
     "    ref_counts_.AddRange(run.cell, run.cell + run.length, 1);\n  }\n  Link(hold);",
     "  Link(hold);"),
    ("a snapshot one token too short", "src/cache/causal_snapshot.cc",
     "    if (part.length == 0) break;\n    snapshot.hold_.runs.Append(part);",
     "    if (part.length <= 1) break;\n    snapshot.hold_.runs.Append(part);"),
    ("a dropped snapshot keeps its cells", "src/cache/causal_snapshot.cc",
     "  if (cells_ != nullptr) cells_->Unhold(snapshot.hold_);\n", ""),
    ("materialising keeps the cells", "src/cache/causal_snapshot.cc",
     "  Unlist(snapshot);\n  cells_->Unhold(snapshot.hold_);\n  return Status::Ok();",
     "  Unlist(snapshot);\n  return Status::Ok();"),
    ("a page at the wrong position", "src/cache/causal_snapshot.cc",
     "AddMove(moves, {part.cell, part.position - first, part.length})",
     "AddMove(moves, {part.cell, part.position - begin, part.length})"),
    ("a restore past its target", "src/cache/causal_snapshot.cc",
     "const HistoryRun part = Clip(held[next], 0, target);",
     "const HistoryRun part = Clip(held[next], 0, kEndOfSequence);"),
    ("a restore keeps the sequence's tail", "src/cache/cell_table.cc",
     "  Truncate(id, begin);\n  for (const HistoryRun& run : hold.runs.runs()) {\n"
     "    const HistoryRun both",
     "  Truncate(id, begin + 1);\n  for (const HistoryRun& run : hold.runs.runs()) {\n"
     "    const HistoryRun both"),
    ("a restore of a window that is incomplete", "src/cache/causal_cache_snapshots.cc",
     "own->first() <= std::max(0, target - causal_.window + 1)",
     "own->first() <= std::max(0, target - causal_.window + 2)", "Window"),
    ("a part of a split page is lost", "src/cache/causal_snapshot.cc",
     "    snapshot.pieces_.push_back(later->pieces_.front());\n"
     "    snapshot.pieces_.back().end = position;\n", ""),
    ("a capture of the wrong range", "src/cache/captures.cc",
     "i == 0 ? own.begin : own.lengths[i - 1]", "own.begin"),
    ("a truncated capture stays", "src/cache/captures.cc",
     "own.taken[--own.next].reset();", "--own.next;"),
    ("an encoder's snapshot without its entry", "src/cache/encoder_snapshot.cc",
     "    entries_->Share(output.entry);\n", "", "Encoder"),
    ("a replaced output is not captured", "src/cache/encoder_cache.cc",
     "    KVCACHE_RETURN_IF_ERROR(CaptureBeforePut(member));\n", "", "Encoder"),
    ("a wrapper merges in its first cache only", "src/cache/wrapper_cache.cc",
     "    } else if (second.parts[i] != nullptr) {",
     "    } else if (second.parts[i] != nullptr && i == 0) {", "SlidingAndFull"),
    # Snapshots of recurrent states.
    ("a kept state without a reference", "src/cache/recurrent_snapshot.cc",
     "  states_->Keep(state.cell);\n  List(snapshot);", "  List(snapshot);", "Recurrent"),
    ("a materialised state keeps its cell", "src/cache/recurrent_snapshot.cc",
     "  states_->Drop(std::exchange(snapshot.state_.cell, StatePoint::kNone));",
     "  snapshot.state_.cell = StatePoint::kNone;", "Recurrent"),
    ("a pass makes no room for its states", "src/cache/recurrent_cache.cc",
     "if (states_.cells().free_cells() >= needed) return", "if (needed >= 0) return", "Recurrent"),
    ("a state of another length is restored", "src/cache/recurrent_cache_snapshots.cc",
     "if (target != own->tokens()) {", "if (target > own->tokens()) {", "Recurrent"),
    ("restore points of replaced tokens stay", "src/cache/recurrent_cache_snapshots.cc",
     "goes_back ? target : window ? 0 : attention->begin()", "target + 0 * goes_back * window",
     "Recurrent"),
    ("a merged snapshot loses its first tokens", "src/cache/recurrent_cache_snapshots.cc",
     "  if (AttentionJoins(first, second)) {\n    KVCACHE_ASSIGN", "  if (false) {\n    KVCACHE_ASSIGN",
     "Recurrent"),
    ("a captured state of one token more", "src/cache/recurrent_captures.cc",
     "std::lower_bound(positions.begin()", "std::upper_bound(positions.begin()", "Recurrent"),
    ("a truncated captured state stays", "src/cache/recurrent_captures.cc",
     "own.taken[--own.next].reset();", "--own.next;", "Recurrent"),
    ("after a capture a pass begins again", "src/cache/recurrent_batch.cc",
     "      before = capture;\n", "", "Recurrent"),
    ("an accepted path forgets its capture", "src/cache/recurrent_batch.cc",
     "      if (starts) ++cut;\n", "", "Recurrent"),
    ("cells of captures leak", "src/cache/recurrent_cache.cc",
     "  for (const std::int32_t cell : cuts_) states_.Drop(cell);\n", "", "Recurrent"),
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def sources(folder):
    """Returns the sources of the model test: the cache, the test support, and the layers below."""
    found = sorted(folder.glob("src/cache/*.cc")) + sorted(folder.glob("tests/support/**/*.cc"))
    found += sorted(folder.glob("src/base/*.cc"))
    found.append(folder / "src/platform/aligned_buffer.cc")
    found = [p for p in found if not re.search(r"_(test|bench)\.cc$", p.name)]
    return found + [folder / "tests/model/kinds_model_test.cc"]


def compile_one(folder, source, target_name=None):
    name = target_name or str(source.relative_to(folder)).replace("/", "_")
    target = folder / "out" / (name + ".o")
    result = run(["g++", *FLAGS, "-c", str(source), "-o", str(target)], cwd=folder)
    if result.returncode != 0:
        sys.exit(f"{source.relative_to(folder)} does not compile:\n{result.stderr[-3000:]}")
    return target


def test(folder, objects, steps, kind):
    """Returns the output of that kind's model test if it failed, or None if it passed."""
    program = folder / "out" / "model_test"
    result = run(["g++", *map(str, objects), "-o", str(program), "-lgtest_main", "-lgtest",
                  "-lpthread"])
    if result.returncode != 0:
        sys.exit(result.stderr[-3000:])
    try:
        result = run([str(program), f"--gtest_filter=*KindsModelTest*/{kind}"], timeout=120,
                     env={**os.environ, "KVCACHE_MODEL_STEPS": str(steps)})
    except subprocess.TimeoutExpired:
        return "did not end in time"
    return None if result.returncode == 0 else result.stdout + result.stderr


def summary(output):
    after = re.search(r"after (\d+) steps", output)
    lines = re.findall(r"^→ (.*)$", output, re.MULTILINE)
    if after and lines:
        return f"after {after.group(1)} steps: {lines[0]}"
    return output.strip().splitlines()[-1][:100] if output.strip() else "crashed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40000)
    parser.add_argument("--only", default="")
    parser.add_argument("--from", dest="first", type=int, default=1)
    arguments = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for part in ("include", "src", "tests"):
            shutil.copytree(ROOT / part, folder / part)
        (folder / "out").mkdir()
        objects = {p: compile_one(folder, p) for p in sources(folder)}
        if test(folder, objects.values(), arguments.steps, "*") is not None:
            sys.exit("the model test fails without any mutation")
        for number, (name, file, text, replacement, *kind) in enumerate(MUTATIONS, start=1):
            if arguments.only not in name or number < arguments.first:
                continue
            path = folder / file
            original = path.read_text(encoding="utf-8")
            if original.count(text) != 1:
                sys.exit(f"mutation '{name}': {file} has its text {original.count(text)} times; "
                         f"must have it once; update MUTATIONS: {text!r}")
            path.write_text(original.replace(text, replacement), encoding="utf-8")
            mutated = dict(objects)
            for number_of_user, user in enumerate(HEADER_USERS.get(file, [file])):
                mutated[folder / user] = compile_one(folder, folder / user,
                                                     f"mutated{number_of_user}")
            output = test(folder, mutated.values(), arguments.steps, *(kind or ["Full"]))
            path.write_text(original, encoding="utf-8")
            survived += output is None
            print(f"{number:3} {'SURVIVED' if output is None else 'found   '}  {name}: "
                  f"{summary(output) if output else ''}", flush=True)
    print(f"{survived} mutations survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
