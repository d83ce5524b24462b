"""The models and texts with which the types of a cache are measured.

  story        the shipped model, and stories that it has not seen
  widened      the same with its weights in f32. With block weights, activations are rounded to 8
               bits, which enlarges the smallest difference in the cache
  outliers     widened with one pair of values of each head's key 16 times as large, and that of
               the queries 16 times as small. It computes the same bits from keys that are as
               uneven as those of large models
  random-64    random weights, heads of 64 values; random tokens
  random-128   the same with heads of 128
"""

import dataclasses
import json
import pathlib
import random
import struct
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/oracle"), str(ROOT / "tools/train")]

import story
from gguf_file import GgufFile

TEXTS, TEXT_TOKENS, SEED = 16, 880, 20260  # training does not use this seed
RANDOM_TOKENS = 1000
OUTLIER_PAIR, OUTLIER = 3, 16.0
STORY, HEAD_DIM = ROOT / "models/story.gguf", 32
F32, ALIGNMENT = 0, 32  # GGUF's number of the type; alignment of tensors


@dataclasses.dataclass(frozen=True)
class Subject:
    name: str
    model: pathlib.Path
    texts: tuple  # arguments of `kvcache eval`, one text each
    questions: tuple = ()


def story_texts(work):
    """Writes held-out stories with questions and answers to files. Returns the arguments of
    `kvcache eval` for each."""
    generator = story.Generator(SEED)
    spec = story.Spec(length=TEXT_TOKENS, question_share=0.25, held_out=True)
    texts = []
    for i in range(TEXTS):
        path = work / f"story-{i}.txt"
        path.write_text(generator.story(spec).text())
        texts.append(("--text-file", str(path)))
    return tuple(texts)


def questions():
    lines = (ROOT / "models/questions.jsonl").read_text().splitlines()
    return tuple(json.loads(line) for line in lines)


def write_widened(source, path, change=lambda name, values: values):
    """Writes the model in f32. `change` may replace a tensor's values."""
    file = GgufFile(source)
    data, infos = b"", b""
    for name, info in file.tensors.items():
        infos += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(info.dims))
        infos += struct.pack(f"<{len(info.dims)}QIQ", *info.dims, F32, len(data))
        data += change(name, file.tensor(name)).astype("<f4").tobytes()
        data += bytes(-len(data) % ALIGNMENT)
    head = source.read_bytes()[:file.infos_start] + infos
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def with_outliers(name, values):
    """Scales one rotated pair of rows of each head's keys and queries by powers of two."""
    factor = {"attn_k.weight": OUTLIER, "attn_q.weight": 1 / OUTLIER}.get(name.split(".", 2)[-1])
    if factor is None:
        return values
    scaled = values.copy()
    for first in range(2 * OUTLIER_PAIR, len(values), HEAD_DIM):
        scaled[first:first + 2] *= factor
    return scaled


def make_random(make_model, head_dim, path):
    subprocess.run([make_model, "--layers", "4", "--width", "256", "--heads", "4", "--kv-heads", "2",
                    "--head-dim", str(head_dim), "--ffn", "512", "--vocab", "1024", "--seed", "1",
                    path], check=True, stdout=subprocess.DEVNULL)


def random_text(work):
    path = work / "random.tokens"
    draw = random.Random(SEED)
    path.write_text(",".join(str(draw.randrange(3, 1024)) for _ in range(RANDOM_TOKENS)) + "\n")
    return (("--tokens-file", str(path)),)


def make_subjects(make_model, work):
    """Writes the files of all subjects to `work`. Returns the subjects by name."""
    texts = story_texts(work)
    subjects = [Subject("story", STORY, texts, questions()),
                Subject("widened", work / "widened.gguf", texts),
                Subject("outliers", work / "outliers.gguf", texts, questions())]
    write_widened(STORY, subjects[1].model)
    write_widened(STORY, subjects[2].model, with_outliers)
    for head_dim in (64, 128):
        model = work / f"random-{head_dim}.gguf"
        make_random(make_model, head_dim, model)
        subjects.append(Subject(f"random-{head_dim}", model, random_text(work)))
    return {subject.name: subject for subject in subjects}
