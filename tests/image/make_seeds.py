#!/usr/bin/env python3
"""Writes the first inputs of the fuzzers of picture formats: fuzz/corpus/{png,jpeg,webp,gif,bmp}_fuzz.

usage: make_seeds.py CORPUS

Of each form that pictures.py writes, the smallest of some random ones. Run it again when pictures.py has a new form.
"""

import pathlib
import sys

import numpy
import pictures

# Forms that reach the same code as others.
LEFT_OUT = ("png-0-2", "png-0-4", "png-3-2", "png-3-4", "png-4-8", "png-6-8", "png-2-8", "-nt", "jpeg-L-b1", "jpeg-L-b2",
            "jpeg-L-p1", "jpeg-L-p2", "jpeg-CMYK-p1", "jpeg-CMYK-b1", "gif-part2", "gif-part3")


def main():
    corpus = pathlib.Path(sys.argv[1])
    smallest = {}
    for number in range(8):
        for name, data in pictures.files(numpy.random.default_rng([7, number])):
            if not any(part in name for part in LEFT_OUT) and len(data) < len(smallest.get(name, data + b" ")):
                if len(data) > 40:
                    smallest[name] = data
    for name, data in sorted(smallest.items()):
        kind, _, form = name.partition("-")
        folder = corpus / f"{kind}_fuzz"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{form}.{kind}").write_bytes(data)


if __name__ == "__main__":
    main()
