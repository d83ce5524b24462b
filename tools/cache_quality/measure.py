#!/usr/bin/python3
"""Measures what each type of the cache does to a model's answers: docs/cache-types.json.

  tools/cache_quality/measure.py --kvcache build/release/kvcache \\
      --make-model build/release/kvcache-make-model --out docs/cache-types.json

Runs the command line for every pair of types (K, V), and compares with the same model's answers
from a cache in f32 on the same machine. Runs use one thread and are exact: the same build gives the
same figures again. --without-hadamard records the figures of a build that does not multiply keys by
the Hadamard matrix (kv_blocks.h), in addition to those in the file; tools/cache_quality/README.md
describes that build.

The figures of each pair, over all positions of all texts: `nll`, as the command prints it for each
text; `kl`, the mean of KL(f32's distribution || this one) in nats; `agree`, the share of positions
whose most likely token is that of f32; `answers`, the number of correct greedy answers to
models/questions.jsonl; `bytes_per_token`.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import subjects

TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0"]
PAIRS = [(k, v) for k in TYPES for v in TYPES]
KEY_PAIRS = [("f32", "f32"), ("q8_0", "f32"), ("q4_0", "f32")]
# For "outliers" only block types are measured, because in float types its logits are unchanged.
WITH_HADAMARD = {"story": PAIRS, "widened": PAIRS, "random-64": PAIRS, "random-128": PAIRS,
                 "outliers": KEY_PAIRS}
WITHOUT_HADAMARD = {name: KEY_PAIRS for name in WITH_HADAMARD if name != "story"}
FORMAT = "kvcache-cache-types 2"


def run(kvcache, *arguments, **kwargs):
    done = subprocess.run([str(a) for a in (kvcache, *arguments)], capture_output=True, text=True,
                          check=False, **kwargs)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


def types(pair):
    return ["--k-type", pair[0], "--v-type", pair[1], "--threads", "1"]


def evaluate(kvcache, model, text, pair, logits=None):
    """Returns the command's report, and the logits [tokens, vocabulary] if `logits` names a file
    for them."""
    wanted = [] if logits is None else ["--logits", logits]
    report = json.loads(run(kvcache, "eval", model, *text, *types(pair), *wanted, "--json"))
    return report, None if logits is None else np.load(logits)


def log_softmax(logits):
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def right_answers(kvcache, model, questions, pair):
    right = 0
    for question in questions:
        answer = run(kvcache, "run", model, "-f", "-", "--raw", "--temp", "0", "-n", "24", "--stop",
                   question["stop"], "--store", "none", *types(pair), input=question["prompt"])
        right += answer.strip() == question["answer"]
    return right


def measure_pair(kvcache, subject, pair, expected, work):
    """Returns the figures of a pair of types for a subject. `expected` has the log-probabilities
    with f32 of each text."""
    figures = {"nll": []}
    distances, agrees = [], []
    for i, text in enumerate(subject.texts):
        report, logits = evaluate(kvcache, subject.model, text, pair, work / "logits.npy")
        figures["nll"].append(report["nll"])
        figures["bytes_per_token"] = report["memory"]["kv_bytes_per_token"]
        got = log_softmax(logits)
        if len(expected) == i:
            expected.append(got)
        distances.append((np.exp(expected[i]) * (expected[i] - got)).sum(axis=1))
        agrees.append(expected[i].argmax(axis=1) == got.argmax(axis=1))
    figures["kl"] = max(0.0, float(np.concatenate(distances).mean()))
    figures["agree"] = float(np.concatenate(agrees).mean())
    if subject.questions:
        figures["answers"] = right_answers(kvcache, subject.model, subject.questions, pair)
    return figures


def measure(args, pairs_of):
    """Returns {subject: {"K/V": figures}} for {subject: pairs}. The first pair must be f32."""
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        all_subjects = subjects.make_subjects(args.make_model, work)
        results = {}
        for name, pairs in pairs_of.items():
            expected, results[name] = [], {}
            for pair in pairs:
                figures = measure_pair(args.kvcache, all_subjects[name], pair, expected, work)
                results[name]["/".join(pair)] = figures
                print(f"{name:10s} {'/'.join(pair):10s} nll {sum(figures['nll']):10.3f} kl"
                      f" {figures['kl']:.2e} agree {figures['agree']:.4f} answers"
                      f" {figures.get('answers', '-')}", flush=True)
            results[name]["tokens"] = sum(map(len, expected))
    return results


def to_text(results):
    """Returns JSON with a line for each pair of types."""
    if not isinstance(results, dict) or "nll" in results:
        return json.dumps(results)
    lines = [f"{json.dumps(key)}: {to_text(value)}" for key, value in results.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--without-hadamard", action="store_true",
                        help="--kvcache is a build without the Hadamard transform of keys")
    args = parser.parse_args()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    results["format"] = FORMAT
    if args.without_hadamard:
        results["without_hadamard"] = measure(args, WITHOUT_HADAMARD)
    else:
        machine = json.loads(run(args.kvcache, "inspect", "--machine", "--json"))
        results["target"] = machine["target"]
        results["with_hadamard"] = measure(args, WITH_HADAMARD)
    args.out.write_text(to_text(results) + "\n")


if __name__ == "__main__":
    main()
