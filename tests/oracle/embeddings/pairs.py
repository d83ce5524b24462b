"""Compares the tokens of pairs of a query and a document with llama.cpp's, with a template and without.

The vocabularies are small and made here, as GGUF files without weights: WordPiece, unigram and byte-level BPE, with one
and with two separators. Files of WordPiece that do not say whether a text has an end are left out: ours then has the published
pairs, [CLS] query [SEP] document [SEP], and llama.cpp leaves the last [SEP] out. So are texts of special tokens in a pair:
ours are plain text.
"""

import argparse
import json
import pathlib
import random
import shutil
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
LETTERS = "abcde"
STRING, ARRAY, INT, FLOAT, UINT, BOOL = 8, 9, 5, 6, 4, 7
TEMPLATE = "<s>a b{query}</s>{document} c</s>"


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, data):
    if kind == STRING:
        return text(data)
    return struct.pack({INT: "<i", FLOAT: "<f", UINT: "<I", BOOL: "<?"}[kind], data)


def write_gguf(path, entries):
    """entries: {key: (kind, value)}, or (kind, [values])."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    for key, (kind, data) in entries.items():
        out += text(key)
        if isinstance(data, list):
            out += struct.pack("<IIQ", ARRAY, kind, len(data)) + b"".join(value(kind, each) for each in data)
        else:
            out += struct.pack("<I", kind) + value(kind, data)
    path.write_bytes(out + b"\0" * (-len(out) % 32))


def vocabulary(model, tokens, types, **more):
    entries = {"general.architecture": (STRING, "bert"), "tokenizer.ggml.model": (STRING, model),
               "tokenizer.ggml.tokens": (STRING, tokens), "tokenizer.ggml.token_type": (INT, types)}
    for key, entry in more.items():
        entries[f"tokenizer.ggml.{key}"] = entry
    return entries


def ids(bos, eos, sep, add_sep):
    return {"bos_token_id": (UINT, bos), "eos_token_id": (UINT, eos), "seperator_token_id": (UINT, sep),
            "add_bos_token": (BOOL, True), "add_eos_token": (BOOL, True), "add_sep_token": (BOOL, add_sep)}


def word_piece(add_sep):
    words = ["\u2581" + each for each in (*LETTERS, "ab", "cde", ".")] + [*LETTERS, "de"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    return vocabulary("bert", tokens, [3, 2, 3, 3] + [1] * len(words), unknown_token_id=(UINT, 1), **ids(2, 3, 3, add_sep))


def unigram(add_sep):
    words = ["\u2581", *("\u2581" + each for each in LETTERS), *LETTERS, "\u2581ab", "de", "."]
    scores = [0.0] * 4 + [-4.0 + len(each) / 3 - i / 100 for i, each in enumerate(words)]
    return vocabulary("t5", ["<s>", "<pad>", "</s>", "<unk>", *words], [3, 3, 3, 2] + [1] * len(words),
                      scores=(FLOAT, scores), unknown_token_id=(UINT, 3), add_space_prefix=(BOOL, True),
                      remove_extra_whitespaces=(BOOL, True), **ids(0, 2, 2, add_sep))


def byte_level(add_sep, pre="gpt-2"):
    # Spaces are U+0120 in these vocabularies, other bytes of this test themselves.
    single = ["\u0120", ".", *LETTERS]
    pairs = [("a", "b"), ("\u0120", "a"), ("d", "e"), ("\u0120a", "b")]
    tokens = ["<s>", "<pad>", "</s>", *single, *("".join(pair) for pair in pairs)]
    return vocabulary("gpt2", tokens, [3, 3, 3] + [1] * (len(tokens) - 3), merges=(STRING, [" ".join(p) for p in pairs]),
                      pre=(STRING, pre), **ids(0, 2, 2, add_sep))


def make_pairs(seed):
    rng = random.Random(seed)

    def words(most):
        return " ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 5))) for _ in range(rng.randint(1, most)))
    return [(words(6), words(12) + rng.choice(["", ".", " ."])) for _ in range(40)]


def cases(folder):
    for name, make in (("wordpiece", word_piece), ("unigram", unigram), ("bpe", byte_level)):
        for add_sep in (False, True):
            if name == "wordpiece" and add_sep:
                continue  # no published file of WordPiece has two separators
            for template in (None, TEMPLATE):
                if template and name == "wordpiece":
                    continue  # nor a template
                path = folder / f"{name}-{add_sep}-{'template' if template else 'plain'}.gguf"
                entries = make(add_sep)
                if template:
                    entries["tokenizer.chat_template.rerank"] = (STRING, template)
                write_gguf(path, entries)
                yield {"model": str(path), "template": template, "add_sep": add_sep, "pairs": make_pairs(len(name))}


def ask_ours(program, job):
    lines = "".join(f"{query}\t{document}\n" for query, document in job["pairs"])
    result = subprocess.run([program, "pairs", job["model"]], input=lines, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{job['model']}: {result.stderr.strip()}")
    return [[int(token) for token in line.split(",")] for line in result.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--node", default=shutil.which(HERE.parent / "node_modules/.bin/node") or shutil.which("node"))
    args = parser.parse_args()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(SKIPPED)
    args.work.mkdir(parents=True, exist_ok=True)
    jobs = list(cases(args.work))
    output = subprocess.run([args.node, HERE / "llama_pairs.mjs"], input=json.dumps(jobs), stdout=subprocess.PIPE, text=True,
                            check=True).stdout
    failures = []
    for job, theirs in zip(jobs, json.loads(output), strict=True):
        ours = ask_ours(args.program, job)
        tokens = sum(map(len, theirs))
        differ = [i for i, pair in enumerate(theirs) if ours[i] != pair]
        print(f"{pathlib.Path(job['model']).stem:28s} {len(theirs)} pairs, {tokens} tokens, {len(differ)} differ")
        failures += [f"{job['model']}, pair {job['pairs'][i]}: ours {ours[i]}, llama.cpp's {theirs[i]}" for i in differ[:3]]
    if failures:
        sys.exit("\n".join(["pairs differ", *failures]))


if __name__ == "__main__":
    main()
