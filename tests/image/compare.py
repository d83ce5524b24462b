#!/usr/bin/env python3
"""Compares decoded and resized pictures with Pillow's, byte for byte, and sizes with the rules of models' processors.

usage: compare.py PROGRAM Decode|Resize|Size [--rounds N] [--seed N] [--keep DIR]

PROGRAM is made of main.cc. Exits with 77 if Pillow is not installed.
"""

import argparse
import io
import math
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy
    import pictures
    from PIL import Image, ImageOps
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}


class Program:
    def __init__(self, path, folder):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.folder = folder
        self.out = folder / "out.rgb"

    def line(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def ask(self, *words):
        answer = self.line(*words, self.out)
        if not answer or answer[0] != "ok":
            return " ".join(answer) or "the program ended"
        width, height = int(answer[1]), int(answer[2])
        return numpy.frombuffer(self.out.read_bytes(), numpy.uint8).reshape(height, width, 3)


def difference(ours, theirs):
    if isinstance(ours, str):
        return ours
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, Pillow's {theirs.shape}"
    unequal = int((ours != theirs).sum())
    if unequal:
        gap = int(numpy.abs(ours.astype(int) - theirs.astype(int)).max())
        return f"{unequal} of {theirs.size} bytes differ, by up to {gap}"
    return None


def pillows(data):
    """What the models' processors see of a file."""
    picture = Image.open(io.BytesIO(data))
    if picture.mode.startswith("I"):  # Pillow clips 16 bits to 8; the rule here is the high byte, as in all other modes
        picture.load()
        turned = ImageOps.exif_transpose(picture)
        return numpy.repeat((numpy.asarray(turned).astype(int) >> 8).astype(numpy.uint8)[:, :, None], 3, 2)
    picture.load()
    return numpy.asarray(ImageOps.exif_transpose(picture).convert("RGB"))


def decode(program, random):
    for name, data in pictures.files(random):
        path = program.folder / "picture"
        path.write_bytes(data)
        yield name, difference(program.ask("decode", path), pillows(data)), data


def resize(program, random):
    for _ in range(20):
        name = str(random.choice(list(FILTERS)))
        width, height, to_width, to_height = (int(side) for side in numpy.exp(random.uniform(0, 5.5, 4)))
        if random.random() < 0.1:
            to_width = width
        if random.random() < 0.1:
            to_height = height
        kind = random.integers(0, 3)
        pixels = random.integers(0, 256, (height, width, 3), numpy.uint8)
        if kind == 0:
            pixels = pictures.smooth(random, width, height, 3)
        elif kind == 1:  # the sharpest edges, whose sums leave the range of a byte
            pixels = pixels // 128 * 255
        path = program.folder / "picture"
        path.write_bytes(pixels.astype(numpy.uint8).tobytes())
        ours = program.ask("resize", path, width, height, name, to_width, to_height)
        theirs = Image.fromarray(pixels.astype(numpy.uint8)).resize((to_width, to_height), FILTERS[name])
        yield f"{name} {width} x {height} to {to_width} x {to_height}", difference(ours, numpy.asarray(theirs)), None


# The rules in Python's own arithmetic. None: the processor refuses the picture, or makes one without pixels of it.


def largest(width, height, unit, units):
    scale = math.sqrt(units * unit * unit / (width * height))
    columns, rows = math.floor(scale * width / unit), math.floor(scale * height / unit)
    if not columns and not rows:
        return None
    if not rows:
        columns, rows = min(width // height, units), 1
    if not columns:
        columns, rows = 1, min(height // width, units)
    return columns * unit, rows * unit


def area(width, height, unit, least, most):
    if max(width, height) / min(width, height) > 200:
        return None
    columns, rows = round(width / unit), round(height / unit)
    if columns * rows * unit * unit > most:
        scale = math.sqrt(width * height / most)
        columns, rows = (max(1, math.floor(side / scale / unit)) for side in (width, height))
    elif columns * rows * unit * unit < least:
        scale = math.sqrt(least / (width * height))
        columns, rows = (math.ceil(side * scale / unit) for side in (width, height))
    return columns * unit, rows * unit


def edge(width, height, unit, longest):
    ratio = max(width / longest, height / longest)
    if ratio > 1:
        width, height = math.floor(width / ratio), math.floor(height / ratio)
    return (-(-width // unit) * unit, -(-height // unit) * unit) if width and height else None


def size(program, random):
    for _ in range(200):
        rule = (largest, area, edge)[random.integers(0, 3)]
        width, height = (int(side) for side in numpy.exp(random.uniform(0, 9, 2)))
        unit = int(random.choice([14, 16, 28, 32, 48]))
        if rule is area and random.random() < 0.3:  # halves
            width, height = (unit // 2 * int(side) for side in random.integers(1, 40, 2))
        numbers = {largest: [int(random.choice([70, 140, 280, 560, 1120]))], edge: [int(random.integers(100, 2000))],
                   area: sorted(int(limit) for limit in numpy.exp(random.uniform(6, 16, 2)))}[rule]
        answer = program.line("size", rule.__name__, width, height, unit, *numbers)
        theirs = rule(width, height, unit, *numbers)
        ours = tuple(int(side) for side in answer[1:]) if answer[0] == "ok" else None
        yield (f"{rule.__name__} {width} x {height}, {unit}, {numbers}",
               None if ours == theirs else f"{' '.join(answer)}, by the rule {theirs}", None)


SUITES = {"Decode": decode, "Resize": resize, "Size": size}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files that differ")
    arguments = parser.parse_args()
    cases = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.program, pathlib.Path(folder))
        for number in range(arguments.rounds):
            random = numpy.random.default_rng([arguments.seed, number])
            for name, error, data in SUITES[arguments.suite](program, random):
                cases += 1
                if error:
                    failed += 1
                    print(f"round {number}: {name}: {error}")
                    if arguments.keep and data:
                        (arguments.keep / f"{number}-{name}").write_bytes(data)
    print(f"{cases} cases, {failed} differ")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
