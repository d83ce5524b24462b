"""Compares our logits with llama.cpp's and with a float64 pass, on random-weight models.

For each shape and weight type, the test makes a model with tools/make_model and evaluates random
prompt tokens, then the 200 tokens that llama.cpp chooses greedily. All three engines get the same
tokens and use F32 caches:

  float64    tests/oracle/reference.py, on the weights as the file holds them, dequantised
  llama.cpp  tests/oracle/llama_cpp.mjs
  ours       kvcache eval --logits

The bounds, with reasons (KL is the mean over positions, in nats):

  f32        KL(ours ‖ either) < 1e-8. llama.cpp is about 1e-11 from float64 here; 1e-8 is a
             logit error of about 1e-4.
  f16, bf16  KL(ours ‖ float64) < 1e-6. llama.cpp rounds activations to the weights' type, which
             puts it up to 1e-6 (f16) and 7e-5 (bf16) from float64. KL(ours ‖ llama.cpp) may
             therefore be 1e-6, or 1.1 times that of float64 to llama.cpp if that is more.
  q…         both quantise activations: KL(ours ‖ float64) <= 1.1 KL(llama.cpp ‖ float64).
  experts    in such types: the same bound for the median over positions instead of the mean. If
             a router has two nearly equal experts, the engines' noise decides between them. One
             token with another expert costs more KL than all other noise together, so the mean
             would compare how often that happens. Routers are f32 in every file. Fewer greedy
             steps are clear for experts; a twentieth must be. The median of 536 positions is
             uncertain by some percent (ten seeds of one case: 0.99 to 1.11 times), so that one of
             many models exceeds the limit by chance. If one does, the test adds the positions of
             three more models of its kind, and the median of all four decides.
  gelu       llama.cpp reads GELU from a table of f16 values, which costs it 1e-7 to 1e-6 in KL,
             more than the difference between GELU's two forms. For feed-forward parts with GELU,
             f32 must be within 1e-8 of float64 as elsewhere, and at most 1.1 times as far from
             llama.cpp as float64 is; llama.cpp must be within 1e-3 of float64.
  greedy     our logits choose llama.cpp's token wherever llama.cpp's margin between its two best
             logits exceeds the noise. With s the rms error of llama.cpp's logits against
             float64, two engines with independent errors of that size differ in such a margin
             by sqrt(2) * sqrt(2) * s = 2s rms; the noise level is five times that, 10s (six in
             ten million for Gaussian errors). Both engines get llama.cpp's tokens, so that a
             near tie does not affect later steps.

  alone      llama.cpp does not know some variants (random_models.py gives the reasons). All their
             tokens are random, and only float64 is compared: f32, f16 and bf16 as above; for types
             that quantise activations KL < 1e-2, twice llama.cpp's largest in any other variant.

The reference is checked too: llama.cpp on f32 weights must be within 1e-10 of it.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

import architectures_page
import distance
from random_models import (ALL_SHAPES, CASES, CODED_TYPES, READ_TYPES, TYPES, VARIANTS, Failure,
                           Shape, Variant, make_model, random_tokens, run, types_of)
import reference

PROMPT, GREEDY = 336, 200  # together they cross two of attention's splits of 256
MIN_ENTROPY = 1.0  # nats; below this the model is too certain for agreement to show anything
MIN_CLEAR = GREEDY // 4  # greedy steps whose margin exceeds the noise
MODELS_TO_DECIDE = 4  # if experts make one model's median too uncertain
FEW_TYPES = ("f32", "q4_k_m")  # of the first shapes, without KVCACHE_SLOW_TESTS
TYPE_STRIDE = 5  # between shapes of a variant
CASE_STRIDE = 20  # has no divisor in common with the number of cases: turns meet all shapes and types
SKIPPED = 77  # the exit status that ctest takes for "skipped"
HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass
class Case:
    variant: Variant
    shape: Shape
    type: str
    model: pathlib.Path
    tokens: list
    stem: pathlib.Path  # path of the files with logits, without their endings
    seed: int

    def parts(self):
        """Returns the encoder's tokens, none for most variants, and the decoder's."""
        return self.tokens[:self.variant.encoded], self.tokens[self.variant.encoded:]

    @property
    def name(self):
        return f"{self.variant.name} {self.shape.name} {self.type}"


def make_case(args, variant, shape, weight_type, seed):
    stem = args.work / f"{variant.name}-{shape.name}-{weight_type}"
    model = stem.with_suffix(".gguf")
    make_model(args.make_model, shape, weight_type, seed, model, variant)
    count = PROMPT + GREEDY if variant.alone else PROMPT
    return Case(variant, shape, weight_type, model, random_tokens(shape, count, seed), stem, seed)


def ask_llama_cpp(args, cases):
    """Runs all cases that llama.cpp knows in one process; appends the greedy tokens to theirs."""
    cases = [case for case in cases if not case.variant.alone]
    jobs = [{"model": str(case.model), "tokens": case.tokens, "greedy": GREEDY,
             "logits": f"{case.stem}.llama"} for case in cases]
    results = json.loads(run([args.node, HERE / "llama_cpp.mjs"], input=json.dumps(jobs)))
    for case, result in zip(cases, results, strict=True):
        case.tokens = result["tokens"]


def ask_ours(args, case):
    tokens = pathlib.Path(f"{case.stem}.tokens")
    out = pathlib.Path(f"{case.stem}.npy")
    encoded, decoded = case.parts()
    tokens.write_text(",".join(map(str, decoded)) + "\n")
    flags = []
    if encoded:
        text = pathlib.Path(f"{case.stem}.encoded")
        text.write_text(",".join(map(str, encoded)) + "\n")
        flags = ["--encode-tokens-file", text]
    run([args.kvcache, "eval", case.model, "--tokens-file", tokens, "--logits", out,
         "--kv-type", "f32", "--json", *case.variant.eval_flags, *flags])
    logits = np.load(out)
    expected = (len(decoded) + bool(encoded), case.shape.vocab)
    if logits.shape != expected or logits.dtype != np.float32:
        raise Failure(f"{case.name}: {out} is {logits.dtype} {logits.shape},"
                      f" expected float32 {expected}")
    return logits


def greedy_agreement(ours, oracle, noise):
    """Returns the number of clear greedy steps, and those at which our logits choose another token."""
    steps = slice(PROMPT - 1, PROMPT - 1 + GREEDY)
    clear = distance.top2_margins(oracle[steps]) > noise
    differs = ours[steps].argmax(axis=1) != oracle[steps].argmax(axis=1)
    return int(clear.sum()), np.flatnonzero(clear & differs).tolist()


def measure(args, case):
    encoded, decoded = case.parts()
    model = reference.load(case.model)
    truth = model.logits(decoded, encoded) if encoded else model.logits(decoded)
    ours = ask_ours(args, case)
    memory = json.loads(run([args.kvcache, "inspect", case.model, "--json"]))["cache"]
    if not np.isfinite(ours).all():
        raise Failure(f"{case.name}: our logits are not all finite")
    ours_p, truth_p = map(distance.log_softmax, (ours, truth))
    row = {
        "variant": case.variant.name, "architecture": case.variant.architecture, "shape": case.shape.name, "type": case.type,
        "caches": sorted({layer["kind"] for layer in memory["layers"]}),
        "positions": len(case.tokens), "alone": case.variant.alone,
        "entropy": distance.entropy(truth_p),
        "kl_ours_truth": distance.mean_kl(ours_p, truth_p),
        "experts": bool(case.variant.experts), "rough_gelu": case.variant.rough_gelu,
        "rows_ours_truth": distance.kl_rows(ours_p, truth_p),
        "rms_ours": distance.rms(ours - truth),
    }
    return row if case.variant.alone else {**row, **measure_llama_cpp(case, ours, truth)}


def with_medians(rows):
    """Returns the first row, with the medians over all models' positions."""
    row = dict(rows[0])
    for engine in ("ours", "llama"):
        if f"rows_{engine}_truth" in row:
            positions = np.concatenate([each[f"rows_{engine}_truth"] for each in rows])
            row[f"median_{engine}_truth"] = float(np.median(positions))
            del row[f"rows_{engine}_truth"]
    return {**row, "models": len(rows)}


def measure_enough(args, case):
    """Returns one model's row; one of four models if the median of one exceeds its limit."""
    rows = [measure(args, case)]
    row = with_medians(rows)
    if not row["experts"] or row["alone"] or all(value <= limit for _, value, limit in bounds(row)):
        return row
    for more in range(1, MODELS_TO_DECIDE):
        other = make_case(args, case.variant, case.shape, case.type, case.seed + 1000 * more)
        ask_llama_cpp(args, [other])
        rows.append(measure(args, other))
    return with_medians(rows)


def measure_llama_cpp(case, ours, truth):
    oracle = np.fromfile(f"{case.stem}.llama", np.float32).reshape(truth.shape)
    ours_p, oracle_p, truth_p = map(distance.log_softmax, (ours, oracle, truth))
    noise = 10 * distance.rms(oracle - truth)
    clear, wrong = greedy_agreement(ours, oracle, noise)
    return {
        "kl_ours_llama": distance.mean_kl(ours_p, oracle_p),
        "kl_llama_truth": distance.mean_kl(oracle_p, truth_p),
        "kl_truth_llama": distance.mean_kl(truth_p, oracle_p),
        "rows_llama_truth": distance.kl_rows(oracle_p, truth_p),
        "rms_llama": distance.rms(oracle - truth),
        "noise": noise, "greedy_clear": clear, "greedy_wrong": wrong,
    }


def bounds_alone(row):
    limit = {"f32": 1e-8, "f16": 1e-6, "bf16": 1e-6}.get(row["type"], 1e-2)
    kl = "median_ours_truth" if row["experts"] and limit == 1e-2 else "kl_ours_truth"
    return [("KL(ours ‖ float64)", row[kl], limit)]


def bounds(row):
    """Returns (name, value, limit) of each distance that must not exceed its limit."""
    if row["alone"]:
        return bounds_alone(row)
    ours_truth = ("KL(ours ‖ float64)", row["kl_ours_truth"])
    ours_llama = ("KL(ours ‖ llama.cpp)", row["kl_ours_llama"])
    llama_truth = ("KL(llama.cpp ‖ float64)", row["kl_llama_truth"])
    if row["type"] == "f32" and row["rough_gelu"]:
        return [(*ours_truth, 1e-8), (*ours_llama, 1.1 * row["kl_truth_llama"]),
                (*llama_truth, 1e-3)]
    if row["type"] == "f32":
        return [(*ours_truth, 1e-8), (*ours_llama, 1e-8), (*llama_truth, 1e-10)]
    if row["type"] in ("f16", "bf16"):
        return [(*ours_truth, 1e-6), (*ours_llama, max(1e-6, 1.1 * row["kl_truth_llama"]))]
    if row["experts"]:
        return [("median KL(ours ‖ float64)", row["median_ours_truth"],
                 1.1 * row["median_llama_truth"])]
    return [(*ours_truth, 1.1 * row["kl_llama_truth"])]


def min_clear(row):
    routers_waver = row["experts"] and row["type"] not in ("f32", "f16")
    return MIN_CLEAR // 5 if routers_waver else MIN_CLEAR


def problems(row):
    """Returns a sentence for each violated bound."""
    found = [f"{what} is {value:.3g}, limit {limit:.3g}"
             for what, value, limit in bounds(row) if not value <= limit]
    if row["entropy"] < MIN_ENTROPY:
        found.append(f"the entropy is {row['entropy']:.2f} nats; must be at least {MIN_ENTROPY},"
                     " because agreement shows nothing otherwise")
    if row["alone"]:
        return found
    if row["greedy_clear"] < min_clear(row):
        found.append(f"{row['greedy_clear']} of {GREEDY} greedy steps are clear of the noise;"
                     f" must be at least {min_clear(row)}")
    if row["greedy_wrong"]:
        found.append(f"our greedy token differs at steps {row['greedy_wrong']}, where the margin"
                     f" exceeds the noise, {row['noise']:.2g}")
    return found


HEADING = """{prompt} prompt tokens and {greedy} greedy ones; F32 caches; seed {seed}
                                      mean KL to float64  mean KL   rms error of logits noise   greedy
variant       shape            type   ours      llama.cpp llama.cpp ours      llama.cpp level     clear wrong"""


def print_row(row):
    if row["alone"]:
        print(f"{row['variant']:13s} {row['shape']:16s} {row['type']:6s} {row['kl_ours_truth']:9.2e} "
              f"{'':19s} {row['rms_ours']:9.2e}", flush=True)
        return
    print(f"{row['variant']:13s} {row['shape']:16s} {row['type']:6s} {row['kl_ours_truth']:9.2e} "
          f"{row['kl_llama_truth']:9.2e} {row['kl_ours_llama']:9.2e} {row['rms_ours']:9.2e} "
          f"{row['rms_llama']:9.2e} {row['noise']:9.2e} {row['greedy_clear']:5d} "
          f"{len(row['greedy_wrong']):5d}", flush=True)


def find_node():
    """Returns the Node installed beside the oracle, else the system's, else None."""
    return shutil.which(HERE / "node_modules/.bin/node") or shutil.which("node")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-model", type=pathlib.Path, required=True)
    parser.add_argument("--kvcache", type=pathlib.Path, required=True)
    parser.add_argument("--node", default=find_node())
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for the files")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures here")
    parser.add_argument("--page", type=pathlib.Path, help="compare the architectures' rows with this page's")
    parser.add_argument("--write", action="store_true", help="write them there instead")
    parser.add_argument("--seed", type=int, default=1)
    variants = [variant.name for variant in VARIANTS]
    parser.add_argument("--variants", nargs="+", choices=[*variants, "all"], default=variants[:1])
    parser.add_argument("--few", choices=["variant", "each"],
                        help="three cases of each variant (with KVCACHE_SLOW_TESTS: each shape, in a"
                        " type that variants take in turns), or one of each type (then: all)")
    parser.add_argument("--shapes", nargs="+", default=[shape.name for shape in ALL_SHAPES])
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES)
    return parser.parse_args()


def each_shape(args, variant):
    """Returns each shape with one type. Variants take types in turns, so that each type meets what they share:
    attention and its kinds, gated networks, experts, recurrent layers.
    """
    turn = VARIANTS.index(variant)
    cases = []
    for place, shape in enumerate(ALL_SHAPES):
        types = [name for name in types_of(shape, variant.architecture) if name in args.types]
        if shape.name in args.shapes and types:
            cases.append((shape, types[(turn + TYPE_STRIDE * place) % len(types)]))
    return cases


def shapes_and_types(args, variant):
    """Returns the shapes and types to run. For --few without KVCACHE_SLOW_TESTS these are few; with it, all of
    them for llama and each_shape for the others.
    """
    slow = "KVCACHE_SLOW_TESTS" in os.environ
    if args.few == "variant" and slow:
        return each_shape(args, variant)
    cases = [(shape, weight_type) for shape, weight_type in CASES
             if shape.name in args.shapes and weight_type in args.types]
    if not args.few or slow:
        return cases
    if args.few == "each":
        of_type = [[case for case in cases if case[1] == name] for name in args.types]
        return [found[turn % len(found)] for turn, found in enumerate(of_type) if found]
    # A float type, a mixture, and what variants take in turns.
    few = [next(case for case in cases if case[1] == name) for name in FEW_TYPES]
    older = [case for case in cases if case[1] not in CODED_TYPES + READ_TYPES]
    turn = older[VARIANTS.index(variant) * CASE_STRIDE % len(older)]
    return few if turn in few else [*few, turn]


def check_page(args, rows):
    """Returns what the page has otherwise than these rows, or writes them."""
    lines = {}
    for name in dict.fromkeys(row["architecture"] for row in rows):
        own = [row for row in rows if row["architecture"] == name]
        failed = any(problems(row) for row in own)
        lines[name] = architectures_page.line(name, own, failed, HERE.parent / "exactness")
    if not args.write:
        return architectures_page.differing(args.page, lines)
    architectures_page.write(args.page, lines)
    return []


def check(args):
    args.work.mkdir(parents=True, exist_ok=True)
    cases = [make_case(args, variant, variant.fit(shape), weight_type,
                       args.seed + 10 * ALL_SHAPES.index(shape) + TYPES.index(weight_type))
             for variant in VARIANTS
             if variant.name in args.variants or ("all" in args.variants and not variant.apart)
             for shape, weight_type in shapes_and_types(args, variant)]
    ask_llama_cpp(args, cases)
    print(HEADING.format(prompt=PROMPT, greedy=GREEDY, seed=args.seed))
    rows, failures = [], []
    for case in cases:
        rows.append(measure_enough(args, case))
        print_row(rows[-1])
        failures += [f"{case.name}: {problem}" for problem in problems(rows[-1])]
    if args.json:
        args.json.write_text(json.dumps({"seed": args.seed, "rows": rows}, indent=1) + "\n")
    if args.page:
        failures += check_page(args, rows)
    if failures:
        raise Failure("\n  ".join([f"{len(failures)} checks failed", *failures]))


def main():
    args = parse_arguments()
    if args.node is None:
        print("SKIPPED: Node is not installed; ./dev setup installs it, with llama.cpp")
        sys.exit(SKIPPED)
    if not (HERE / "node_modules/node-llama-cpp").exists():
        sys.exit("oracle: llama.cpp is not installed in tests/oracle; run ./dev setup oracle")
    try:
        check(args)
    except Failure as failure:
        sys.exit(f"oracle: {failure}")


if __name__ == "__main__":
    main()
