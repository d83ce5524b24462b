#!/usr/bin/env python3
"""Checks what the compiler does not: includes of tests, third parties, public headers, examples.

A layer is a folder under src/. CMakeLists.txt says which layers it may include, and a wrong include
does not compile. Here the same rule holds for unit tests beside the sources, which see all of src/.
Prints every include that breaks a rule; exits 1 if there is one.
"""

import pathlib
import re
import sys

# The layers that each layer may include, besides itself and the public headers.
BELOW_CACHE = ["base", "platform", "tensor", "backend"]
LIBRARY = BELOW_CACHE + ["cache", "prefix", "store"]
FORMATS = ["gguf", "tokenizer", "chat_template"]
MAY_INCLUDE = {
    "base": [],
    "platform": ["base"],
    "tensor": ["base", "platform"],
    "backend": ["base", "platform", "tensor"],
    # The trie decides, the caches execute, and the stores move bytes. None knows the others.
    "cache": BELOW_CACHE,
    "prefix": ["base", "platform"],
    "store": ["base", "platform"],
    "gguf": ["base", "platform", "tensor"],
    "tokenizer": ["base", "platform", "gguf"],
    "chat_template": ["base", "platform", "gguf", "tokenizer"],
    "model": LIBRARY + ["gguf"],
    "inspect": ["base", "platform", "gguf", "tokenizer", "model"],
    "engine": LIBRARY + FORMATS + ["model"],
    "server": LIBRARY + FORMATS + ["model", "inspect", "engine"],
    "cli": LIBRARY + FORMATS + ["model", "inspect", "engine", "server"],
}
# The layers that may use each library. Tests and benchmarks may use any.
THIRD_PARTY = {
    "hwy": {"tensor", "backend"},
    "nlohmann": {"chat_template", "inspect", "engine", "server", "cli"},
    "CLI": {"cli"},
}
# The one source that may include a library of headers that compile slowly.
ONLY_SOURCE = {"CLI": "src/cli/command_line.cc"}
# "support" is tests/support: doubles and helpers; "make_model" makes random models for tests.
TEST_ONLY = {"gtest", "gmock", "rapidcheck", "benchmark", "support", "make_model"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
SOURCES = (".h", ".cc")


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def files(root, folder):
    base = root / folder
    return sorted(p for p in base.rglob("*") if p.suffix in SOURCES) if base.is_dir() else []


def layer_error(layer, mark, header, is_test):
    """Returns the reason why a file of `layer` may not include `header`, or None."""
    first = header.split("/")[0].removesuffix(".h")
    if first in TEST_ONLY:
        return None if is_test else "only tests and benchmarks may use it"
    if first in THIRD_PARTY:
        return None if is_test or layer in THIRD_PARTY[first] else f"{layer} may not use {first}"
    if mark == "<" or first in ("kvcache", layer):
        return None
    if first == "kvcache_engine":  # the engine's public headers
        return None if layer == "engine" or "engine" in MAY_INCLUDE[layer] else \
            f"{layer} may not know the engine"
    if first not in MAY_INCLUDE:
        return 'an include path must begin at src/ or include/: "layer/file.h"'
    return None if first in MAY_INCLUDE[layer] else f"{layer} may not know {first}"


def check(root):
    errors = []
    for path in files(root, "src"):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in MAY_INCLUDE:
            errors.append(f"{path}: unknown layer '{layer}'; add it to tools/check_layers.py")
            continue
        is_test = path.stem.endswith(("_test", "_testing", "_bench"))
        for number, mark, header in includes(path):
            error = layer_error(layer, mark, header, is_test)
            only = ONLY_SOURCE.get(header.split("/")[0])
            if only and not is_test and path != root / only:
                error = f"only {only} may use it"
            if error:
                errors.append(f"{path.relative_to(root)}:{number}: {header}: {error}")
    public = {"include/kvcache": ("kvcache/",),
              "include/kvcache_engine": ("kvcache/", "kvcache_engine/"),
              "examples": ("kvcache/", "kvcache_engine/")}
    for folder, allowed in public.items():
        for path in files(root, folder):
            # An example may have headers of its own, and may use the conformance kit.
            of_example = folder == "examples"
            for number, mark, header in includes(path):
                if of_example and ((path.parent / header).exists() or
                                   header.startswith("support/")):
                    continue
                third_party = header.split("/")[0] in THIRD_PARTY
                if third_party or mark == '"' and not header.startswith(allowed):
                    errors.append(f"{path.relative_to(root)}:{number}: {header}: "
                                  "only public headers may be used here")
    return errors


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    errors = check(root)
    print("\n".join(errors) if errors else "layers: ok", file=sys.stderr if errors else sys.stdout)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
