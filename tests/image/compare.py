#!/usr/bin/env python3
"""Compares decoded and resized pictures with Pillow's, byte for byte.

usage: compare.py PROGRAM Decode|Resize [--rounds N] [--seed N] [--keep DIR]

PROGRAM is made of main.cc. Exits with 77 if Pillow is not installed.
"""

import argparse
import io
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

    def ask(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in (*words, self.out)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("suite", choices=["Decode", "Resize"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files that differ")
    arguments = parser.parse_args()
    cases = failed = 0
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.program, pathlib.Path(folder))
        for number in range(arguments.rounds):
            random = numpy.random.default_rng([arguments.seed, number])
            for name, error, data in (decode if arguments.suite == "Decode" else resize)(program, random):
                cases += 1
                if error:
                    failed += 1
                    print(f"round {number}: {name}: {error}")
                    if arguments.keep and data:
                        (arguments.keep / f"{number}-{name}").write_bytes(data)
    print(f"{cases} pictures, {failed} differ from Pillow's")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
