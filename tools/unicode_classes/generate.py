#!/usr/bin/env python3
"""Writes src/tokenizer/unicode/unicode_class_data.cc: the class of each code point.

Source: UnicodeData.txt of Unicode 15.0 (Debian 12's package unicode-data), and the additions of
Unicode 15.1, because llama.cpp uses 15.1 and our tokens equal its tokens.

    python3 tools/unicode_classes/generate.py > src/tokenizer/unicode/unicode_class_data.cc
"""

import argparse
import sys

CODE_POINTS = 0x110000
# Maps the first letter of the general category to the class. White_Space is Z and a few controls.
CLASSES = {"L": "L", "N": "N", "M": "M", "P": "P", "S": "S", "Z": "W"}
SPACE_CONTROLS = [*range(0x09, 0x0E), 0x85]
ADDED_IN_15_1 = [(0x2FFC, 0x2FFF, "S"), (0x31EF, 0x31EF, "S"), (0x2EBF0, 0x2EE5D, "L")]
PER_LINE = 7

HEAD = """\
// Made by tools/unicode_classes/generate.py from Unicode 15.1; not to be edited.
#include "tokenizer/unicode/unicode_class.h"

namespace kvcache {
namespace {

constexpr UnicodeClass L = kLetter, N = kNumber, M = kMark, P = kPunctuation, S = kSymbol,
                       W = kWhite, O = kOther;

// clang-format off
constexpr UnicodeRange kRanges[] = {
"""
TAIL = """\
};
// clang-format on

}  // namespace

std::span<const UnicodeRange> UnicodeRanges() {
  return kRanges;
}

}  // namespace kvcache
"""


def read_classes(path):
    """Returns the class of every code point; O if the file does not have it."""
    classes = ["O"] * CODE_POINTS
    first = None
    with open(path, encoding="ascii") as file:
        for line in file:
            number, name, category = line.split(";")[:3]
            last = int(number, 16)
            if name.endswith(", First>"):
                first = last
                continue
            start = last if first is None else first
            classes[start:last + 1] = [CLASSES.get(category[0], "O")] * (last + 1 - start)
            first = None
    for code_point in SPACE_CONTROLS:
        classes[code_point] = "W"
    for start, last, kind in ADDED_IN_15_1:
        classes[start:last + 1] = kind * (last + 1 - start)
    return classes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="/usr/share/unicode/UnicodeData.txt")
    classes = read_classes(parser.parse_args().source)
    starts = [c for c in range(CODE_POINTS) if c == 0 or classes[c] != classes[c - 1]]
    entries = [f"{{0x{c:X}, {classes[c]}}}," for c in starts]
    lines = [" ".join(entries[i:i + PER_LINE]) for i in range(0, len(entries), PER_LINE)]
    sys.stdout.write(HEAD + "".join(f"  {line}\n" for line in lines) + TAIL)


if __name__ == "__main__":
    main()
