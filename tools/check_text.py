#!/usr/bin/env python3
"""Checks the text of the repository's files.

These are errors: paths of a person's machine, addresses of package registries, spaces at the end of
a line, tabs, a missing newline at the end, shell scripts that bash cannot parse, and shipped models of
more than 16 MB in total. A source file of more than 500 lines is a warning.
"""

import os
import pathlib
import re
import subprocess
import sys

MAX_LINES = 500
MAX_MODEL_BYTES = 16_000_000
TEXT = {".h", ".cc", ".cu", ".py", ".mjs", ".js", ".md", ".txt", ".cmake", ".json", ".sh", ".yml", ""}
SOURCE = {".h", ".cc", ".cu", ".py", ".mjs", ".sh"}
SKIP = {"build", "node_modules", ".git", ".cache", "__pycache__"}

FORBIDDEN = [
    (re.compile(r"/(?:home|Users)/[a-z]\w*/|(?<!\w)/root/|/tmp/[a-z]+/node_modules"),
     "a path of a person's machine; use a relative path"),
    (re.compile(r"\b(?:registry|deb|archive|snapshot|proxy|pypi|crates)\.[\w-]+\.(?:org|com|io|net|dev)\b"),
     "the address of a package registry; name the package only"),
    (re.compile(r'^\s*"resolved"\s*:\s*"http'),
     "the address of a package registry; name the package only"),
    (re.compile(r"[ \t]+$"), "spaces at the end of the line"),
    (re.compile(r"^ *\t"), "a tab; use spaces"),
]


def tracked(root):
    """Returns the files that git tracks or does not ignore; without git, all files except built
    ones."""
    command = ["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"]
    try:
        names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return [root / name for name in names.splitlines() if (root / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders if f not in SKIP]
            found += [pathlib.Path(folder) / name for name in names]
        return found


def check_file(path, name):
    errors, warnings = [], []
    if path.suffix not in TEXT:
        return errors, warnings
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        if path.suffix:
            errors.append(f"{name}: not UTF-8")
        return errors, warnings
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        errors += [f"{name}:{number}: {why}" for pattern, why in FORBIDDEN if pattern.search(line)]
    if text and not text.endswith("\n"):
        errors.append(f"{name}: no newline at the end")
    if re.match(r"#!.*\b(?:ba)?sh\b", lines[0]):
        parsed = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
        if parsed.returncode:
            errors.append(f"{name}: not a shell script: {parsed.stderr.strip()}")
    if path.suffix in SOURCE and len(lines) > MAX_LINES:
        warnings.append(f"{name}: {len(lines)} lines; split files of more than {MAX_LINES}")
    return errors, warnings


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    errors, warnings = [], []
    for path in sorted(tracked(root)):
        name = path.relative_to(root).as_posix()
        if name == "tools/check_text.py":
            continue  # it contains the forbidden patterns
        found = check_file(path, name)
        errors += found[0]
        warnings += found[1]
    model_bytes = sum(path.stat().st_size for path in (root / "models").glob("*.gguf"))
    if model_bytes > MAX_MODEL_BYTES:
        errors.append(f"models/: {model_bytes} bytes in total; must be at most {MAX_MODEL_BYTES}")
    for line in warnings:
        print(f"warning: {line}")
    for line in errors:
        print(line, file=sys.stderr)
    print(f"text: {'ok' if not errors else f'{len(errors)} errors'}, {len(warnings)} warnings")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
