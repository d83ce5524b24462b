"""Compares prefill and decode of a 1B-class model with llama.cpp's, in one run.

Both engines use the same file, tokens, number of threads and types of keys and values, with a warm
file cache, one engine at a time. Each figure of llama.cpp is the best over its CPU builds that this
machine can load and over flash attention on and off (block types of V need it on). The phases save
their results in the work folder:

  models   writes the random-weight models (tools/make_model)
  verify   compares our logits with llama.cpp's and float64 on a small model (tests/oracle)
  history  makes llama.cpp's states at each depth, with flash attention on and off (their layouts
           differ). Nothing is timed, so the machine may be busy. A thin model with a cache of the
           same shape evaluates the first tokens; longer histories repeat their cells
           (llama_state.py), since the content of K and V does not change the speed of reading
  ours     times decode and prefill at each depth with bench/model_bench; histories longer than
           --evaluate tokens repeat cells too
  peer     times llama.cpp's decode at each depth, and its prefill, in every configuration; prefill
           at a depth takes long and uses only the build that was the fastest without history
  turns    both in turn, instead of `ours` and `peer`: each engine's measurement of a case follows the
           other's, --rounds times, since the machine's bandwidth changes within minutes. An engine is
           stopped while another one measures. Ratios are medians over the rounds. Prefill at a depth
           belongs to the first round
  report   writes the table as Markdown and JSON

With --target AVX2 both engines use AVX2 only, on a machine that has more: our kernels of that
instruction set, and llama.cpp's builds that need nothing else. With --sequences both engines also
decode one token of each of several sequences in one pass; each sequence has a history of its own.

Run it on a quiet machine: both engines' threads wait by spinning.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / each) for each in ("bench", "tests/support", "tests/oracle")]

import llama_state
import peer_report
from ggml_builds import BUILDS, BUILDS_OF_TARGET
from machine_facts import describe_machine
from random_models import TYPES, VARIANTS, Failure, Shape, make_model, run

PHASES = ["models", "verify", "history", "ours", "peer", "report"]  # the default
ALL_PHASES = [*PHASES, "turns"]
SHAPES = {
    "1b": Shape("1b", 16, 2048, 32, 8, 64, 8192, 128000, tied=False),
    # Each layer has 8 experts of 1,024, of which a token uses 4.
    "experts": Shape("experts", 4, 2048, 32, 4, 64, 2048, 32000, tied=False),
    "tiny": Shape("tiny", 2, 256, 4, 2, 64, 512, 2048, tied=True),
}
QWEN3_MOE = next(variant for variant in VARIANTS if variant.name == "qwen3moe")
ARCHITECTURES = {"experts": dataclasses.replace(QWEN3_MOE, flags=(
    *QWEN3_MOE.flags, "--experts", 8, "--experts-used", 4, "--expert-ffn", 1024), experts=())}
DEPTHS = {"1b": [0, 4096, 16384], "experts": [0], "tiny": [0, 512, 1024]}
EVALUATED = 1024  # maximum number of tokens of llama.cpp's first history
KV_TYPES = ["f16", "q8_0", "q4_0"]
# Number of builds to try, beginning with the first that the machine can load. The newest is not
# always the fastest: AVX512-FP16 slows some down at head size 64.
BUILDS_TRIED = 3
PROMPT = 512
SEQUENCE_HISTORY = {"1b": 256, "experts": 256, "tiny": 64}  # tokens of each of several sequences
SEED = 1


class Bench:
    def __init__(self, args):
        self.args = args
        self.shape = SHAPES[args.shape]
        self.depths = DEPTHS[args.shape] if args.depths is None else args.depths
        self.deep = [depth for depth in self.depths if depth > 0]
        self.prefill_depths = [0, *args.prefill_depths]
        self.sequence_history = args.sequence_history or SEQUENCE_HISTORY[args.shape]
        self.environment = dict(os.environ)
        if args.target:
            self.environment["KVCACHE_CPU_TARGET"] = args.target
        for depth in args.prefill_depths:
            if depth not in self.depths:
                raise Failure(f"--prefill-depths: {depth} is not one of the depths {self.depths}; "
                              "add it to --depths")
        self.pairs = [(weights, kv) for weights in args.types for kv in args.kv_types]
        self.make_model = args.build / "tools/make_model/kvcache-make-model"
        self.work = args.work / args.shape
        self.work.mkdir(parents=True, exist_ok=True)
        longest = max([*self.depths, self.sequence_history if args.sequences else 0])
        count = longest + PROMPT + args.rounds * (args.decode_tokens + 1)
        self.tokens = np.random.default_rng(SEED).integers(0, self.shape.vocab, count).tolist()
        self.tokens_file = self.work / "tokens"
        self.tokens_file.write_text(" ".join(map(str, self.tokens)) + "\n")

    def model(self, name):
        """Returns the path of the model of a weight type, or of the thin one."""
        return self.work / f"{name}.gguf"

    def kept_path(self, name):
        target = f"-{self.args.target}" if self.args.target else ""
        return self.work / f"{name}{target}.json"

    def keep(self, name, result):
        self.kept_path(name).write_text(json.dumps(result, indent=1) + "\n")

    def kept(self, name):
        path = self.kept_path(name)
        return json.loads(path.read_text()) if path.exists() else None

    def log(self, text):
        print(text, file=sys.stderr, flush=True)

    # ---- phases ----

    def models(self):
        shape = self.shape
        thin = dataclasses.replace(shape, width=256, heads=shape.kv_heads, ffn=256)
        wanted = {"thin": (thin, "q8_0"), **{name: (shape, name) for name in self.args.types}}
        for name, (shape, weight_type) in wanted.items():
            if not self.model(name).exists():
                self.log(f"writing {self.model(name)}")
                variant = {} if name == "thin" else self.variant()
                make_model(self.make_model, shape, weight_type, SEED, self.model(name), **variant)

    def variant(self):
        """Returns the argument of make_model that names the shape's architecture."""
        found = ARCHITECTURES.get(self.args.shape)
        return {"variant": found} if found else {}

    def verify(self):
        self.log("checking logits on a small model")
        table = run(["/usr/bin/python3", ROOT / "tests/oracle/compare.py", "--make-model",
                     self.make_model, "--kvcache",
                     self.args.build / "kvcache", "--work", self.work / "verify", "--shapes",
                     "grouped-64", "wide-grouped-64", "--types", *self.args.types],
                    env=self.environment)
        self.log(table)

    def history(self):
        for kv in self.args.kv_types:
            wanted = [self.state(flash, kv, depth) for flash in self.flash_settings(kv)
                      for depth in self.deep]
            if all(path.exists() for path in wanted):
                continue
            evaluated = min(EVALUATED, self.deep[0])
            first = self.state(self.flash_settings(kv)[0], kv, evaluated)
            if not first.exists():
                self.ask_peer(self.builds()[0], self.flash_settings(kv)[0], "thin", kv,
                              depths=[evaluated], repeats=1)
            state = llama_state.read(first)
            for flash in self.flash_settings(kv):
                for depth in self.deep:
                    if not self.state(flash, kv, depth).exists():
                        llama_state.write(self.state(flash, kv, depth), state, depth,
                                          int(not flash))
                        self.log(f"history of {depth} in {kv}, flash attention "
                                 f"{on_off(flash)}: written")

    def ours(self):
        for weights, kv in self.pairs:
            self.log(f"ours, {weights}, {kv} cache")
            self.warm(self.model(weights))
            output = run(self.our_command(weights, kv), env=self.environment)
            self.keep(f"ours-{weights}{suffix(kv)}", json.loads(output))

    def our_command(self, weights, kv):
        return [self.args.build / "bench/model_bench", "--model", self.model(weights),
                "--tokens-file", self.tokens_file, "--threads", self.args.threads,
                "--k-type", kv, "--v-type", kv, "--evaluate", self.args.evaluate,
                "--depths", ",".join(map(str, self.depths)), "--prefill-depths",
                ",".join(map(str, self.prefill_depths)),
                "--repeats", self.args.repeats, "--decode-tokens",
                self.args.decode_tokens, "--clock", self.args.clock, "--rounds", self.args.rounds,
                *self.sequence_flags()]

    def sequence_flags(self):
        if not self.args.sequences:
            return []
        return ["--sequences", ",".join(map(str, self.args.sequences)), "--sequence-history",
                self.sequence_history]

    def peer(self):
        for weights, kv in self.pairs:
            self.warm(self.model(weights))
            name = f"peer-{weights}{suffix(kv)}"
            results = (self.kept(name) or []) if self.args.append else []
            results += [self.ask_and_tell(build, flash, weights, kv, depths=self.depths,
                                          prefill_depths=[0], repeats=self.args.repeats,
                                          sequences=self.args.sequences)
                        for build in self.builds() for flash in self.flash_settings(kv)]
            for flash in self.flash_settings(kv) if self.args.prefill_depths else []:
                best = max((r for r in results
                            if r["flash_attention"] == flash and "0" in r["prefill_ms"]),
                           key=lambda r: peer_report.speeds(r, PROMPT)["prefill", 0])
                results.append(self.ask_and_tell(
                    best["build"], flash, weights, kv, depths=[],
                    prefill_depths=self.args.prefill_depths, repeats=1))
            self.keep(name, results)

    def turns(self):
        for weights, kv in self.pairs:
            self.log(f"in turn, {weights}, {kv} cache")
            self.warm(self.model(weights))
            settings = [(build, flash) for build in self.builds()
                        for flash in self.flash_settings(kv)]
            commands = [[*self.our_command(weights, kv), "--in-turn"]]
            for build, flash in settings:
                job = self.job(build, flash, weights, kv, repeats=self.args.repeats,
                               depths=self.depths, prefill_depths=self.prefill_depths,
                               sequences=self.args.sequences)
                commands.append(self.peer_command({**job, "in_turn": True}, len(commands)))
            ours, *peer = play(commands, self.environment)
            self.keep(f"ours-{weights}{suffix(kv)}", ours)
            self.keep(f"peer-{weights}{suffix(kv)}",
                      [{**result, "flash_attention": flash}
                       for result, (_, flash) in zip(peer, settings, strict=True)])

    def report(self):
        rows = []
        for weights, kv in self.pairs:
            ours, peer = (self.kept(f"{who}-{weights}{suffix(kv)}") for who in ("ours", "peer"))
            if ours is None or peer is None:
                raise Failure(f"{weights} with a {kv} cache has no results; run the phases `ours` "
                              "and `peer` first")
            rows += peer_report.rows(self.model(weights), weights, kv, PROMPT, ours, peer)
        first = self.kept(f"ours-{self.pairs[0][0]}{suffix(self.pairs[0][1])}")
        result = peer_report.result({**first["machine"], **describe_machine()},
                                    self.shape.__dict__, SEED, rows)
        self.keep("results", result)
        text = peer_report.markdown(result)
        self.kept_path("results").with_suffix(".md").write_text(text)
        print(text)

    # ---- llama.cpp ----

    def flash_settings(self, kv):
        if kv != "f16":
            return (True,)
        return {"both": (False, True), "on": (True,), "off": (False,)}[self.args.flash]

    def state(self, flash, kv, depth):
        return self.work / f"state-{'flash' if flash else 'plain'}{suffix(kv)}.{depth}"

    def modules(self, build):
        """Returns a copy of the package, made of links, in which `build` is the only build."""
        folder = self.args.work / "builds" / build / "node_modules"
        source = (ROOT / "tests/oracle/node_modules").resolve()
        if not folder.exists():
            shutil.copytree(source, folder, copy_function=link_or_copy, symlinks=False,
                            ignore=lambda path, names: other_builds(build, names))
            for library in folder.rglob(f"amx-{build}.so"):
                library.rename(library.with_name(f"libggml-cpu-{build}.so"))
        return folder

    def builds(self):
        """Returns the builds that this machine can load, and saves their names."""
        if self.args.builds:
            return self.args.builds
        known = self.kept("builds")
        if known is None:
            builds = BUILDS_OF_TARGET.get(self.args.target, BUILDS)
            known = [build for build in builds if self.loads(build)][:BUILDS_TRIED]
            if not known:
                raise Failure("this machine can load none of llama.cpp's builds; run ./dev setup "
                              "oracle")
            self.keep("builds", known)
        return known

    def loads(self, build):
        try:
            return self.ask_peer(build, False, "thin", "f16", repeats=1)["build"] == build
        except Failure:
            return False

    def ask_and_tell(self, build, flash, weights, kv, **what):
        result = self.ask_peer(build, flash, weights, kv, **what)
        self.log(f"llama.cpp {weights}, {kv} cache, {build}, flash attention {on_off(flash)}: "
                 f"{peer_report.summary(result, PROMPT)}")
        return result

    def job(self, build, flash, model, kv, repeats, depths=(), prefill_depths=(0,), sequences=()):
        return {"modules": str(self.modules(build)), "model": str(self.model(model)),
                "threads": self.args.threads, "flash_attention": flash, "kv_type": kv.upper(),
                "prompt": self.tokens[:PROMPT], "repeats": repeats, "depths": list(depths),
                "prefill_depths": list(prefill_depths), "sequences": list(sequences),
                "sequence_history": self.sequence_history, "clock": self.args.clock,
                "decode_tokens": self.args.decode_tokens, "history": self.tokens,
                "rounds": self.args.rounds, "in_turn": False,
                "state": str(self.state(flash, kv, 0).with_suffix(""))}

    def peer_command(self, job, number=0):
        path = self.work / f"job-{number}.json"
        path.write_text(json.dumps(job))
        return [self.args.node, HERE / "llama_cpp_bench.mjs", path]

    def ask_peer(self, build, flash, *what, **more):
        output = run(self.peer_command(self.job(build, flash, *what, **more)))
        return {**json.loads(output), "flash_attention": flash}

    def warm(self, path):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


class Player:
    """A program that measures in turn with others. It is stopped when it is not its turn."""

    def __init__(self, command, environment):
        self.command = [str(part) for part in command]
        self.process = subprocess.Popen(self.command, env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.plays = True
        self.output = ""

    def wait(self):
        """Waits until the program asks for a turn, then stops it; or until it ends."""
        line = self.process.stdout.readline()
        if line == "turn\n":
            self.process.send_signal(signal.SIGSTOP)
            return
        self.output = line + self.process.stdout.read()
        self.plays = False
        if self.process.wait() != 0:
            raise Failure(f"`{' '.join(self.command)}` exited with status "
                          f"{self.process.returncode}")

    def turn(self):
        if not self.plays:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.wait()

    def result(self):
        return json.loads(self.output)


def play(commands, environment):
    """Runs programs that measure in turn, and returns their results."""
    players = []
    try:
        for command in commands:
            players.append(Player(command, environment))
            players[-1].wait()
        while any(player.plays for player in players):
            for player in players:
                player.turn()
        return [player.result() for player in players]
    finally:
        for player in players:
            player.process.kill()


def on_off(flag):
    return "on" if flag else "off"


def suffix(kv):
    """Returns the suffix of file names for a cache type; f16 has none."""
    return "" if kv == "f16" else f"-{kv}"


def link_or_copy(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def other_builds(build, names):
    """Returns the files of a folder that the copy omits: other CPU builds and other systems."""
    foreign = {name for name in names
               if name.startswith(("linux-", "mac-", "win-")) and name != "linux-x64"}
    return foreign | {name for name in names
                      if name.startswith("libggml-cpu-") and name != f"libggml-cpu-{build}.so"}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", nargs="+", choices=ALL_PHASES, default=PHASES)
    parser.add_argument("--types", nargs="+", choices=[*TYPES, "mxfp4_moe"],
                        default=["q8_0", "f16"])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--append", action="store_true",
                        help="add llama.cpp's figures to the saved ones, such as other builds'")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kv-types", nargs="+", choices=KV_TYPES, default=["f16"],
                        help="types of K and V, for both engines")
    parser.add_argument("--depths", type=int, nargs="+", help="tokens of history, ascending")
    parser.add_argument("--prefill-depths", type=int, nargs="*", default=[],
                        help="the depths at which prefill is measured too")
    parser.add_argument("--target", choices=["AVX2", "AVX_VNNI", "AVX3", "AVX3_DL", "AMX"],
                        help="our instruction set, and llama.cpp's builds that need no other one "
                        "(default: the best of this machine)")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: processor time of both engines, for --threads 1 on a busy machine")
    parser.add_argument("--sequences", type=int, nargs="+", default=[],
                        help="numbers of sequences that are decoded together")
    parser.add_argument("--sequence-history", type=int,
                        help="tokens of history of each of them (default: 256)")
    parser.add_argument("--evaluate", type=int, default=1 << 30,
                        help="evaluate this many tokens of our history; longer ones repeat them")
    parser.add_argument("--repeats", type=int, default=3,
                        help="number of timed prefills of a round")
    parser.add_argument("--flash", choices=["both", "on", "off"], default="both",
                        help="llama.cpp's flash attention over a cache of f16")
    parser.add_argument("--rounds", type=int, default=1,
                        help="number of times that each measurement is made")
    parser.add_argument("--decode-tokens", type=int, default=16,
                        help="number of timed tokens at each depth")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build/peer")
    parser.add_argument("--builds", nargs="+", choices=BUILDS,
                        help="llama.cpp's builds to time (default: the newest that can be loaded)")
    node = ROOT / "tests/oracle/node_modules/.bin/node"
    parser.add_argument("--node", default=str(node) if node.exists() else "node")
    return parser.parse_args()


def main():
    args = parse_arguments()
    try:
        bench = Bench(args)
        for phase in args.phases:
            getattr(bench, phase)()
    except Failure as failure:
        sys.exit(f"peer_bench: {failure}")


if __name__ == "__main__":
    main()
