#!/usr/bin/env python3
"""Checks that includes point downward only, as docs/design says.

A layer is a folder under src/. It may include itself and the layers below it; the library
(up to store) knows nothing of the engine, and public headers know nothing of src/.
Prints every include that breaks a rule; exits 1 if there is one.
"""

import pathlib
import re
import sys

# Each layer and what it may include, besides itself and the public headers.
BELOW_CACHE = ["base", "platform", "tensor", "backend"]
LIBRARY = BELOW_CACHE + ["cache", "prefix", "store"]
MAY_INCLUDE = {
    "base": [],
    "platform": ["base"],
    "tensor": ["base", "platform"],
    "backend": ["base", "platform", "tensor"],
    # The trie decides, the caches execute, the stores move bytes: none knows the others.
    "cache": BELOW_CACHE,
    "prefix": ["base", "platform"],
    "store": ["base", "platform"],
    "model": LIBRARY,
    "engine": LIBRARY + ["model"],
    "server": LIBRARY + ["model", "engine"],
    "cli": LIBRARY + ["model", "engine", "server"],
}
# Whose headers the installed library may ask for.
ENGINE_ONLY = ("nlohmann/", "CLI/", "httplib")

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


def layer_error(layer, header):
    """Why a file of `layer` may not include `header` (the text in quotes), or None."""
    first = header.split("/")[0]
    if first == "kvcache" or first == layer:
        return None
    if first not in MAY_INCLUDE:
        return "includes are written from src/ or include/: \"layer/file.h\""
    if first not in MAY_INCLUDE[layer]:
        return f"{layer} may not know {first}"
    return None


def check(root):
    errors = []
    for path in files(root, "src"):
        layer = path.relative_to(root / "src").parts[0]
        if layer not in MAY_INCLUDE:
            errors.append(f"{path}: unknown layer '{layer}'; add it to tools/check_layers.py")
            continue
        test = path.stem.endswith(("_test", "_bench"))
        for number, mark, header in includes(path):
            error = layer_error(layer, header) if mark == '"' else None
            if layer in LIBRARY and not test and header.startswith(ENGINE_ONLY):
                error = "the library may not use the engine's dependencies"
            # hwy's foreach_target.h includes a file again by its own name.
            if error:
                errors.append(f"{path.relative_to(root)}:{number}: {header}: {error}")
    for folder in ("include/kvcache", "examples"):
        for path in files(root, folder):
            for number, mark, header in includes(path):
                if mark == '"' and not header.startswith("kvcache/"):
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
