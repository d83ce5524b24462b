#!/usr/bin/env python3
"""Checks what the compiler does not: includes of tests, third parties, public headers, examples.

CMakeLists.txt declares each layer, a folder under src/, with the layers and libraries that it may
include: kvcache_layer(NAME USES layer... LIBRARIES target... WITHOUT folder...). This script reads
that list. The compiler refuses a layer that is not in USES, but it accepts any library whose headers
are installed, and unit tests see all of src/. A unit test may include any layer that is declared
before its own. A folder that another layer names in WITHOUT is a layer of its own, "OUTER/FOLDER";
its headers are the outer layer's.
Prints every include that breaks a rule; exits 1 if there is one.
"""

import pathlib
import re
import sys

# The libraries' targets, by the first folder of their headers. Layers name them in LIBRARIES; what
# tests and benchmarks use is theirs.
THIRD_PARTY = {
    "hwy": "hwy::hwy",
    "nlohmann": "nlohmann_json::nlohmann_json",
    "CLI": "CLI11::CLI11",
    "curl": "CURL::libcurl",
    "lzma": "LibLZMA::LibLZMA",
    "lmdb": "lmdb",
    "png": "png",
    "jpeglib": "jpeg",
    "jerror": "jpeg",
    "webp": "webp",
    "hiredis": "hiredis",
    "xxhash": "xxhash",
    "openssl": "OpenSSL::Crypto",
    "boost": "Boost::headers",
    "prometheus": "prometheus-cpp::core",
    "spdlog": "spdlog::spdlog",
}
# The sources that may include a library whose headers compile slowly.
ONLY_SOURCES = {
    "CLI": ["src/app/flags/command_line.cc"],
    "boost": ["src/server/http/client_stream.h", "src/server/http/http_request_reader.cc", "src/server/http/http_server.cc",
              "src/server/http/http_connection.cc", "src/server/http/http_connection.h"],
    "curl": ["src/pull/curl_client.cc"],
    "jerror": ["src/image/formats/jpeg.cc"],
    "jpeglib": ["src/image/formats/jpeg.cc"],
    "png": ["src/image/formats/png.cc"],
    "webp": ["src/image/formats/webp.cc"],
    "prometheus": ["src/server/api/operator/metrics.cc"],
    "spdlog": ["src/server/log.cc"],
}
# Public headers of the engine that have values only, which layers below it take and give.
VALUES = {"kvcache_engine/adapter.h", "kvcache_engine/picture.h"}
# "support" is tests/support: doubles and helpers; "import" is tests/import, which writes models in
# Hugging Face's layout; "make_model" makes random models for tests.
TEST_ONLY = {"gtest", "gmock", "rapidcheck", "benchmark", "support", "import", "make_model"}

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


class Layer:
    """What a layer may include, besides itself and the public headers."""

    def __init__(self, arguments, declared_before):
        self.name = arguments[0]
        lists = {"USES": [], "LIBRARIES": [], "WITHOUT": []}
        current = None
        for argument in arguments[1:]:
            if argument in lists:
                current = lists[argument]
            else:
                current.append(argument)
        self.folder = self.name.split("/")[0]  # that includes of its own headers begin with
        self.uses = set(lists["USES"])
        self.test_uses = self.uses | set(declared_before)
        self.libraries = set(lists["LIBRARIES"])


def declared_layers(cmake):
    """The layers of a CMakeLists.txt, by name, in the order of their declarations."""
    text = re.sub(r"#.*", "", cmake.read_text(encoding="utf-8"))
    variables = dict(re.findall(r"\bset\((\w+) (\S+)\)", text))
    text = re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], match[0]), text)
    layers = {}
    for arguments in re.findall(r"\bkvcache_layer\(([^)]*)\)", text):
        layer = Layer(arguments.split(), layers)
        layers[layer.name] = layer
    return layers


def layer_error(layers, layer, mark, header, is_test):
    """Why a file of `layer` may not include `header`, or None."""
    first = header.split("/")[0].removesuffix(".h")
    uses = layer.test_uses if is_test else layer.uses
    if first in TEST_ONLY:
        return None if is_test else "only tests and benchmarks may use it"
    if first in THIRD_PARTY:
        return None if is_test or THIRD_PARTY[first] in layer.libraries else \
            f"{layer.name} may not use {first}"
    if mark == "<" or first in ("kvcache", layer.folder):
        return None
    if first == "kvcache_engine":  # the engine's public headers
        return None if layer.name == "engine" or "engine" in uses or header in VALUES else \
            f"{layer.name} may not know the engine"
    if first not in layers:
        return 'includes are written from src/ or include/: "layer/file.h"'
    return None if first in uses else f"{layer.name} may not know {first}"


def check(root):
    errors = []
    layers = declared_layers(root / "CMakeLists.txt")
    for path in files(root, "src"):
        parts = path.relative_to(root / "src").parts
        name = "/".join(parts[:2]) if "/".join(parts[:2]) in layers else parts[0]
        if name not in layers:
            errors.append(f"{path.relative_to(root)}: no layer '{name}'; declare it in "
                          "CMakeLists.txt with kvcache_layer")
            continue
        is_test = path.stem.endswith(("_test", "_testing", "_bench")) or \
            parts[:3] == ("backend", "cuda", "shim")  # compiled with tests only
        for number, mark, header in includes(path):
            error = layer_error(layers, layers[name], mark, header, is_test)
            only = ONLY_SOURCES.get(header.split("/")[0])
            if only and not is_test and path.relative_to(root).as_posix() not in only:
                error = f"only {' and '.join(only)} may use it"
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
