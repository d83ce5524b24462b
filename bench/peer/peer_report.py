"""Computes speeds, the machine's limits, and the shares of the limits from measured times.

The limits use the machine's figures from the same process:
  decode   read bandwidth at that depth / (bytes of the weights + bytes of K and V), with the better
           of the two loops that read; also with the plain loop
  prefill  all multiply-adds at the peak of their kind (int8 dot products for block types, f32 FMA
           for the others). The kind of q·K is given by K's type, that of p·V by V's; p's 16 bits
           take two int8 dot products. The output matrix counts for one token
  sequences  decode of several sequences in one pass, all tokens counted: the lower of both limits.
           Reading counts the weights once and each sequence's K and V
"""

import statistics

from block_types import BLOCK_TYPES
from gguf_file import GgufFile
from machine_facts import FORMAT

FLOAT_TYPES = ("f32", "f16", "bf16")
KV_BYTES = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
_BYTES_PER_VALUE = {0: 4.0, 1: 2.0, 30: 2.0,
                    **{number: block_bytes / size
                       for number, (_, size, block_bytes, _) in BLOCK_TYPES.items()}}


class ModelCost:
    """The cost of a token: bytes to read and multiply-adds. A token uses some of the experts."""

    def __init__(self, path):
        file = GgufFile(path)
        meta = file.metadata
        arch = meta["general.architecture"]
        self.layers = meta[f"{arch}.block_count"]
        self.heads = meta[f"{arch}.attention.head_count"]
        width = meta[f"{arch}.embedding_length"]
        self.head_dim = meta.get(f"{arch}.attention.key_length", width // self.heads)
        kv_heads = meta.get(f"{arch}.attention.head_count_kv", self.heads)
        self.kv_values = 2 * self.layers * kv_heads * self.head_dim  # values of K and V per token
        matrices = {name: info for name, info in file.tensors.items() if len(info.dims) >= 2}
        self.experts_used = meta.get(f"{arch}.expert_used_count", 1)
        head = "output.weight" if "output.weight" in matrices else "token_embd.weight"
        layers = [info for name, info in matrices.items() if name.startswith("blk.")]
        self.head_macs = self.macs(matrices[head])
        self.layer_macs = sum(map(self.macs, layers))
        self.weight_bytes = sum(self.macs(info) * _BYTES_PER_VALUE[info.type]
                                for info in [*layers, matrices[head]])

    def macs(self, info):
        return info.dims[0] * info.dims[1] * (self.experts_used if len(info.dims) > 2 else 1)

    def decode_bytes(self, depth, kv):
        return self.weight_bytes + depth * self.kv_values * KV_BYTES[kv]

    def attention_macs(self, tokens, depth):
        """Returns the multiply-adds of q·K in a causal prefill after `depth` tokens; p·V has as
        many."""
        return self.layers * self.heads * self.head_dim * tokens * (depth + (tokens + 1) / 2)


def peak(kind, machine, dots=1):
    """Returns the peak of multiply-adds on values of a type, in 10^9 operations per second. One of
    a block type takes `dots` products of bytes. Types of few bits have a rate of their own."""
    small = machine.get("small_int_gop_per_s", machine["int8_gop_per_s"])
    int8 = machine["int8_gop_per_s"] if kind == "q8_0" else small
    return int8 / dots if kind not in FLOAT_TYPES and int8 > 0 else machine["f32_gflop_per_s"]


def weights_peak(kind, machine):
    """Returns the peak for products of weights with many tokens: that of matrix tiles, where the instruction set has them."""
    tiles = 0 if kind in FLOAT_TYPES else machine.get("tile_gop_per_s", 0)
    return max(tiles, peak(kind, machine))


def limit(cost, weights, kv, prompt, ours, what, depth):
    """Returns the machine's limit in tokens per second."""
    machine = ours["machine"]
    if what == "sequences":
        read = max(ours["read_gb_per_s"].values()) * 1e9
        history = ours["sequence_history"]
        bytes_read = cost.decode_bytes(depth * history, kv)
        multiply = 2e-9 * depth * (cost.layer_macs + cost.head_macs) / weights_peak(weights, machine)
        return depth / max(bytes_read / read, multiply)
    if what == "decode":
        return ours["read_gb_per_s"][str(depth)] * 1e9 / cost.decode_bytes(depth, kv)
    attention = cost.attention_macs(prompt, depth)
    seconds = 2e-9 * ((cost.layer_macs * prompt + cost.head_macs) / weights_peak(weights, machine)
                      + attention / peak(kv, machine) + attention / peak(kv, machine, dots=2))
    return prompt / seconds


def speeds(result, prompt):
    """Returns {(what, depth): median tokens per second}."""
    decode = {("decode", int(depth)): 1e3 / statistics.median(times)
              for depth, times in result["decode_ms"].items()}
    prefill = {("prefill", int(depth)): prompt * 1e3 / statistics.median(times)
               for depth, times in result["prefill_ms"].items()}
    together = {("sequences", int(count)): int(count) * 1e3 / statistics.median(times)
                for count, times in result.get("sequences_ms", {}).items()}
    return {**prefill, **decode, **together}


def median_ratio(ours, peer, what, depth):
    """Returns how many times faster we are: the median over the rounds, each the ratio of the medians
    of both engines, which measured one after the other. Without rounds there is one ratio."""
    lists = [result[f"{what}_ms"][str(depth)] for result in (ours, peer)]
    rounds = ours.get("rounds", 1)
    if rounds != peer.get("rounds", 1) or any(len(times) < rounds for times in lists):
        rounds = 1
    parts = [[times[len(times) * i // rounds:len(times) * (i + 1) // rounds]
              for i in range(rounds)] for times in lists]
    return statistics.median(statistics.median(b) / statistics.median(a) for a, b in zip(*parts))


def summary(result, prompt):
    return ", ".join(f"{what} {'of' if what == 'sequences' else 'at'} {depth} {speed:.1f}"
                     for (what, depth), speed in speeds(result, prompt).items()) + " tokens/s"


def agreement(ours, peer):
    """Returns the numbers of compared and of equal choices, and the margins of the others."""
    pairs = list(zip(ours["greedy"], peer["greedy"], peer["margins"], strict=True))
    return {"positions": len(pairs), "same": sum(a == b for a, b, _ in pairs),
            "differing_margins": [margin for a, b, margin in pairs if a != b]}


def case(model, weights, kv, prompt, ours, what, depth):
    """Returns one of our figures in the format of bench/README.md."""
    times = sorted(ours[f"{what}_ms"][str(depth)])
    tokens = {"prefill": prompt, "decode": 1, "sequences": depth}[what]
    rate = tokens * 1e3 / statistics.median(times)
    allowed = limit(ModelCost(model), weights, kv, prompt, ours, what, depth)
    place = (f"decode of {depth} sequences" if what == "sequences" else f"{what} at {depth}")
    found = {"name": f"{place}, {weights} weights, {kv} cache", "kind": what,
             "history": ours["sequence_history"] if what == "sequences" else depth,
             "queries": tokens, "weights": weights, "type": kv,
             "history_repeated": 0 if what == "sequences" else
             ours["history"][str(depth)]["repeated"],
             "best_ms": times[0], "median_ms": statistics.median(times),
             "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)],
             "rate": rate, "unit": "tokens/s", "rate_of": "median", "limit": allowed,
             "share": rate / allowed, "cpu_share": ours["cpu_share"]}
    if what == "decode":
        best, plain = (ours[key][str(depth)] for key in ("read_gb_per_s", "plain_read_gb_per_s"))
        plain_limit = allowed * plain / best
        found |= {"plain_limit": plain_limit, "plain_share": rate / plain_limit,
                  "read_gb_per_s": best, "plain_read_gb_per_s": plain}
    return found


def cases(model, weights, kv, prompt, ours):
    kinds = ["prefill", "decode", "sequences"]
    order = sorted(speeds(ours, prompt), key=lambda key: (kinds.index(key[0]), key[1]))
    return [case(model, weights, kv, prompt, ours, *key) for key in order]


def rows(model, weights, kv, prompt, ours, peer):
    """Returns our cases with the peer's best figure and its settings."""
    found = cases(model, weights, kv, prompt, ours)
    for row in found:
        key = row["kind"], row["queries" if row["kind"] == "sequences" else "history"]
        measured = [p for p in peer if key in speeds(p, prompt)]
        if not measured:
            continue
        best = max(measured, key=lambda p: speeds(p, prompt)[key])
        speed = speeds(best, prompt)[key]
        row["peers"] = {"llama.cpp": {
            "rate": speed, "ratio": median_ratio(ours, best, *key), "share": speed / row["limit"],
            "build": best["build"], "flash_attention": best["flash_attention"],
            "cpu_share": best["cpu_share"], "choices": agreement(ours, best)}}
    return found


def result(machine, shape, seed, rows):
    return {"format": FORMAT, "bench": "llama_cpp", "machine": machine,
            "settings": {"shape": shape, "seed": seed}, "cases": rows}


def markdown(result):
    machine, shape = result["machine"], result["settings"]["shape"]
    rows = [row for row in result["cases"] if "peers" in row]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads of {machine['cores']} cores, kernel "
        f"{machine['kernel']}; kernels for {machine['target']}, compiler {machine['compiler']}, "
        f"commit {machine['commit']}. Measured in the same run: reads "
        f"{machine['read_gb_per_s']:.1f} GB/s, f32 FMA {machine['f32_gflop_per_s']:.0f} GFLOP/s, "
        f"products of bytes {machine['int8_gop_per_s']:.0f} GOP/s, of small integers "
        f"{machine.get('small_int_gop_per_s', machine['int8_gop_per_s']):.0f} GOP/s. Model: {shape['layers']} "
        f"layers, width {shape['width']}, {shape['heads']} heads over {shape['kv_heads']} K/V "
        f"heads of {shape['head_dim']}, FFN {shape['ffn']}, vocabulary {shape['vocab']}, random "
        f"weights of seed {result['settings']['seed']}. Medians, tokens per second.",
        "",
        "| weights | cache | | kvcache | llama.cpp at its best | ratio | limit | share of the"
        " limit (llama.cpp's) |",
        "|---|---|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        peer = row["peers"]["llama.cpp"]
        place = {"prefill": f"prefill {row['queries']} at {row['history']:,}",
                 "decode": f"decode at {row['history']:,}",
                 "sequences": f"decode of {row['queries']} sequences at {row['history']:,}"}
        how = f"{peer['build']}, flash {'on' if peer['flash_attention'] else 'off'}"
        lines.append(
            f"| {row['weights']} | {row['type']} | {place[row['kind']]} | "
            f"{row['rate']:.1f} | {peer['rate']:.1f} ({how}) | {peer['ratio']:.2f}× | "
            f"{row['limit']:.1f} | {row['share']:.0%} ({peer['share']:.0%}) |")
    choices = {(row["weights"], row["type"]): row["peers"]["llama.cpp"]["choices"]
               for row in rows}
    for (weights, kv), same in choices.items():
        others = "".join(f", one of margin {margin:.2g} differs"
                         for margin in same["differing_margins"])
        lines += ["", f"Greedy choices after the prompt's last {same['positions']} tokens, "
                  f"{weights} with a cache of {kv}: {same['same']} equal to llama.cpp's{others}."]
    lines += ["", "The engines' threads ran "
              f"{min(row['cpu_share'] for row in rows):.0%} and "
              f"{min(row['peers']['llama.cpp']['cpu_share'] for row in rows):.0%} of the time; "
              "less than 100% means that other programs ran."]
    return "\n".join(lines) + "\n"
