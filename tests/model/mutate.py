#!/usr/bin/env python3
"""Plants bugs in a copy of the cache and shows that the random scripts find each of them.

Usage: tests/model/mutate.py [--steps 10000] [--only NAME]

Each mutation replaces one piece of text in one file, in a scratch copy; the work tree is never
touched. The model test must then fail within --steps steps, else the mutation has survived and
this exits 1. A text that is no longer there is an error too: mend the list with the code.
Needs g++ and GoogleTest; takes a few minutes.
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

# name, file, text, replacement
MUTATIONS = [
    ("truncation keeps one too many", "src/cache/run_list.cc",
     "runs_.back() = Clip(runs_.back(), 0, length)",
     "runs_.back() = Clip(runs_.back(), 0, length + 1)"),
    ("truncation frees one too few", "src/cache/cell_table.cc",
     "Clip(runs[i], length, kEndOfSequence)", "Clip(runs[i], length + 1, kEndOfSequence)"),
    ("copy-on-write missed", "src/cache/cell_table.cc",
     "if (users_[cell] > 1) {", "if (users_[cell] > 2) {"),
    ("copy-on-write in the wrong direction", "src/cache/cell_table.cc",
     "AddCopy(removal.copies, cell, own)", "AddCopy(removal.copies, own, cell)"),
    ("copy-on-write keeps the old user", "src/cache/cell_table.cc",
     "      --users_[cell];\n", ""),
    ("copies not counted as needed", "src/cache/cell_table.cc",
     "if (needed > free_cells()) {", "if (needed > free_cells() + 1) {"),
    ("one cell leaks", "src/cache/cell_table.cc",
     "for (std::int32_t i = cell; i < cell + length; ++i) {",
     "for (std::int32_t i = cell; i + 1 < cell + length; ++i) {"),
    ("shared prefix without its users", "src/cache/cell_table.cc",
     "++users_[shared.cell + i];", "users_[shared.cell + i] = 1;"),
    ("copy keeps what the target held", "src/cache/cell_table.cc",
     "  Truncate(dst, 0);\n", "  histories_[Index(dst)].Clear();\n"),
    ("shared prefix one too long", "src/cache/cell_table.cc",
     "Clip(run, 0, length);\n    if", "Clip(run, 0, length + (length < 1000));\n    if"),
    ("stale free bit", "src/cache/free_set.cc",
     "word &= ~(std::uint64_t{1} << (index & 63));\n",
     "if (level == 0) word &= ~(std::uint64_t{1} << (index & 63));\n"),
    ("free bit not found again", "src/cache/free_set.cc",
     "if (!was_empty) return;", "return;"),
    ("no search around the end", "src/cache/cell_table.cc",
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
     "RoundUp(pass_.size(), config_->batch_padding)", "std::int64_t{pass_.size()}"),
    ("mask hides the query's own token", "src/cache/history_mask.cc",
     "kEndOfSequence : position + 1", "kEndOfSequence : position"),
    ("mask shows the next token", "src/cache/history_mask.cc",
     "kEndOfSequence : position + 1", "kEndOfSequence : position + 2"),
    ("mask of the pass before", "src/cache/causal_cache.cc",
     "  masked_cells_ = {};\n  return", "  return"),
    ("put in sorted order", "src/cache/forward_pass.cc",
     "cell_of_[token.index] =", "cell_of_[&token - ordered_.data()] ="),
    ("queries of the wrong sequence", "src/cache/forward_pass.cc",
     "histories_index_[ordered_[i].index] =", "histories_index_[i] ="),
    ("position held twice", "src/cache/causal_cache.cc",
     "tokens[i - 1].position == position;", "tokens[i - 1].position == position && false;"),
    ("full cache noticed late", "src/cache/causal_cache.cc",
     "if (cells_.free_cells() < size) {", "if (cells_.free_cells() + 1 < size) {"),
    ("full cache noticed early", "src/cache/causal_cache.cc",
     "if (cells_.free_cells() < size) {", "if (cells_.free_cells() <= size) {"),
    ("reserve pass writes", "src/cache/causal_cache.cc",
     "if (pass_.reserving()) return Status::Ok();",
     "if (pass_.reserving()) return backend_->StoreKv(storage, k, v,\n"
     "    std::vector<CellRun>{{0, pass_.size()}});"),
    ("resume one too far", "src/cache/causal_cache.cc",
     "position <= cells_.history(sequence).length();",
     "position <= cells_.history(sequence).length() + 1;"),
    ("pass outlives a removal", "src/cache/causal_cache.cc",
     "    cells_.Truncate(sequence, begin);\n  }\n  pass_.End();\n",
     "    cells_.Truncate(sequence, begin);\n  }\n"),
    ("keys turned the wrong way", "src/cache/causal_cache.cc",
     "removal.shifted, begin - end)", "removal.shifted, end - begin)"),
    ("keys of one layer not turned", "src/cache/causal_cache.cc",
     "layer < layers_.size(); ++layer", "layer + 1 < layers_.size(); ++layer"),
    ("a removal without shift function", "src/cache/causal_cache.cc",
     "if (!shift_keys_) {", "if (!shift_keys_ && begin > 0) {"),
    ("tail removal moves nothing", "src/cache/causal_cache.cc",
     "if (end < cells_.history(sequence).length()) {",
     "if (end <= cells_.history(sequence).length() && begin < end) {"),
    ("layer kept after a refused allocation", "src/cache/layer_store.cc",
     "KVCACHE_ASSIGN_OR_RETURN(layer.v, backend_->Allocate(layer.storage.VBytes()));",
     "auto v = backend_->Allocate(layer.storage.VBytes());\n"
     "  if (!v.ok()) { layers_.resize(9); layers_[8] = std::move(layer); return v.status(); }\n"
     "  layer.v = std::move(*v);"),
    ("transposed values from the wrong cell", "src/cache/causal_cache.cc",
     "view.data += cells.cell * view.stride_bytes[0];", "view.data += cells.cell;"),
]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def sources(folder):
    """What the model test links: the cache, its helpers, and what they stand on."""
    found = sorted(folder.glob("src/cache/*.cc")) + sorted(folder.glob("tests/support/*.cc"))
    found += sorted(folder.glob("src/base/*.cc"))
    found = [p for p in found if not re.search(r"_(test|bench)\.cc$", p.name)]
    return found + [folder / "tests/model/causal_model_test.cc"]


def compile_one(folder, source, target_name=None):
    name = target_name or str(source.relative_to(folder)).replace("/", "_")
    target = folder / "out" / (name + ".o")
    result = run(["g++", *FLAGS, "-c", str(source), "-o", str(target)], cwd=folder)
    if result.returncode != 0:
        sys.exit(f"{source.relative_to(folder)} does not compile:\n{result.stderr[-3000:]}")
    return target


def test(folder, objects, steps):
    """The model test's output if it failed, or None if it passed."""
    program = folder / "out" / "model_test"
    result = run(["g++", *map(str, objects), "-o", str(program), "-lgtest_main", "-lgtest",
                  "-lpthread"])
    if result.returncode != 0:
        sys.exit(result.stderr[-3000:])
    try:
        result = run([str(program), "--gtest_filter=*RandomScripts*"], timeout=120,
                     env={**os.environ, "KVCACHE_MODEL_STEPS": str(steps)})
    except subprocess.TimeoutExpired:
        return "did not end"
    return None if result.returncode == 0 else result.stdout + result.stderr


def summary(output):
    after = re.search(r"after (\d+) steps", output)
    lines = re.findall(r"^→ (.*)$", output, re.MULTILINE)
    if after and lines:
        return f"after {after.group(1)} steps: {lines[0]}"
    return output.strip().splitlines()[-1][:100] if output.strip() else "crashed"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    survived = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for part in ("include", "src", "tests"):
            shutil.copytree(ROOT / part, folder / part)
        (folder / "out").mkdir()
        objects = {p: compile_one(folder, p) for p in sources(folder)}
        if test(folder, objects.values(), arguments.steps) is not None:
            sys.exit("the model test fails without any mutation")
        for name, file, text, replacement in MUTATIONS:
            if arguments.only not in name:
                continue
            path = folder / file
            original = path.read_text(encoding="utf-8")
            if original.count(text) != 1:
                sys.exit(f"{name}: {original.count(text)} times in {file}: {text!r}")
            path.write_text(original.replace(text, replacement), encoding="utf-8")
            mutated = {**objects, path: compile_one(folder, path, "mutated")}
            output = test(folder, mutated.values(), arguments.steps)
            path.write_text(original, encoding="utf-8")
            survived += output is None
            print(f"{'SURVIVED' if output is None else 'found   '}  {name}: "
                  f"{summary(output) if output else ''}", flush=True)
    print(f"{survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
