#!/usr/bin/env python3
"""Plants bugs in a copy of the caches and checks that the model test finds each of them.

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

from mutations import HEADER_USERS, MUTATIONS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLAGS = ["-std=c++20", "-O1", "-MMD", "-Iinclude", "-Isrc", "-Itests"]


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def sources(folder):
    """Returns the sources of the model test: the cache, the test support, and the layers below."""
    found = sorted(folder.glob("src/cache/**/*.cc")) + sorted(folder.glob("tests/support/**/*.cc"))
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


def users(folder, file, objects):
    """Returns the sources that a file's change affects."""
    if file in HEADER_USERS or not file.endswith(".h"):
        return HEADER_USERS.get(file, [file])
    return [str(source.relative_to(folder)) for source, target in objects.items()
            if f"{file} " in target.with_suffix(".d").read_text().replace("\n", " \n")]


def test(folder, objects, steps, kind):
    """Returns the output of that kind's model test if it failed, or None if it passed."""
    program = folder / "out" / "model_test"
    result = run(["g++", *map(str, objects), "-o", str(program), "-lgtest_main", "-lgtest", "-lgmock", "-lcrypto",
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
        for kind in sorted({(*kinds, "Full")[0] for _, _, _, _, *kinds in MUTATIONS}):
            output = test(folder, objects.values(), arguments.steps, kind)
            if output is not None:
                sys.exit(f"the model test of {kind} fails without any mutation:\n{output[-3000:]}")
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
            try:
                for number_of_user, user in enumerate(users(folder, file, objects)):
                    mutated[folder / user] = compile_one(folder, folder / user,
                                                         f"mutated{number_of_user}")
            except SystemExit as failure:
                print(f"{number:3} INVALID   {name}: {failure}", flush=True)
                survived += 1
                continue
            finally:
                path.write_text(original, encoding="utf-8")
            output = test(folder, mutated.values(), arguments.steps, *(kind or ["Full"]))
            survived += output is None
            print(f"{number:3} {'SURVIVED' if output is None else 'found   '}  {name}: "
                  f"{summary(output) if output else ''}", flush=True)
    print(f"{survived} mutations survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
