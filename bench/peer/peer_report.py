"""From times to the table: speeds, the machine's limits, and what share of them is reached.

Limits, from what the same process measured of the machine:
  decode   read bandwidth / (bytes of the weights + bytes of K and V at that depth)
  prefill  multiply-adds of the layers at the peak of their kind (int8 dot products for block
           types, f32 FMA for the others), the attention's at the peak of f32 FMA; the output matrix
           counts for one token
"""

import statistics

from block_types import BLOCK_TYPES
from gguf_file import GgufFile

KV_BYTES = 2  # f16
_BYTES_PER_VALUE = {0: 4.0, 1: 2.0, 30: 2.0,
                    **{number: block_bytes / size
                       for number, (_, size, block_bytes, _) in BLOCK_TYPES.items()}}


class ModelCost:
    """What a token costs: bytes to read and multiply-adds."""

    def __init__(self, path):
        file = GgufFile(path)
        meta = file.metadata
        self.layers = meta["llama.block_count"]
        self.heads = meta["llama.attention.head_count"]
        width = meta["llama.embedding_length"]
        self.head_dim = meta.get("llama.attention.key_length", width // self.heads)
        kv_heads = meta.get("llama.attention.head_count_kv", self.heads)
        self.kv_bytes = 2 * self.layers * kv_heads * self.head_dim * KV_BYTES
        matrices = {name: info for name, info in file.tensors.items() if len(info.dims) == 2}
        head = "output.weight" if "output.weight" in matrices else "token_embd.weight"
        layers = [info for name, info in matrices.items() if name.startswith("blk.")]
        self.head_macs = macs(matrices[head])
        self.layer_macs = sum(map(macs, layers))
        self.weight_bytes = sum(macs(info) * _BYTES_PER_VALUE[info.type]
                                for info in [*layers, matrices[head]])

    def decode_bytes(self, depth):
        return self.weight_bytes + depth * self.kv_bytes

    def attention_macs(self, tokens):
        """Of a prefill from position 0, causal: q·K and p·V over half of the pairs."""
        return 2 * self.layers * self.heads * self.head_dim * tokens * (tokens + 1) / 2


def macs(info):
    return info.dims[0] * info.dims[1]


def limits(cost, weight_type, prompt, depths, machine):
    """Tokens per second that the machine allows: {"prefill": x, depth: x}."""
    peak = machine["f32_gflop_per_s"]
    if weight_type.startswith("q") and machine["int8_gop_per_s"] > 0:
        peak = machine["int8_gop_per_s"]
    seconds = 2e-9 * ((cost.layer_macs * prompt + cost.head_macs) / peak
                      + cost.attention_macs(prompt) / machine["f32_gflop_per_s"])
    found = {depth: machine["read_gb_per_s"] * 1e9 / cost.decode_bytes(depth) for depth in depths}
    return {"prefill": prompt / seconds, **found}


def speeds(result, prompt):
    """Median tokens per second: {"prefill": x, depth: x}."""
    found = {int(depth): 1e3 / statistics.median(times)
             for depth, times in result["decode_ms"].items()}
    return {"prefill": prompt * 1e3 / statistics.median(result["prefill_ms"]), **found}


def summary(result, prompt):
    return ", ".join(f"{what if what == 'prefill' else f'decode at {what}'} {speed:.1f}"
                     for what, speed in speeds(result, prompt).items()) + " tokens/s"


def agreement(ours, peer):
    """Of the checked positions, how many choices are the same; margins of those that differ."""
    pairs = list(zip(ours["greedy"], peer["greedy"], peer["margins"], strict=True))
    return {"positions": len(pairs), "same": sum(a == b for a, b, _ in pairs),
            "differing_margins": [margin for a, b, margin in pairs if a != b]}


def rows(model, weight_type, prompt, depths, ours, peer):
    """One row per figure: ours, the peer at its best and how, the limit."""
    limit = limits(ModelCost(model), weight_type, prompt, depths, ours["machine"])
    our_speeds = speeds(ours, prompt)
    found = []
    for what in ["prefill", *depths]:
        best = max((p for p in peer if what in speeds(p, prompt)),
                   key=lambda p: speeds(p, prompt)[what])
        speed = speeds(best, prompt)[what]
        found.append({
            "weights": weight_type, "what": what, "ours": our_speeds[what], "peer": speed,
            "peer_build": best["build"], "peer_flash_attention": best["flash_attention"],
            "ratio": our_speeds[what] / speed, "limit": limit[what],
            "share_of_limit": our_speeds[what] / limit[what],
            "peer_share_of_limit": speed / limit[what], "choices": agreement(ours, best),
            "cpu_share": ours["cpu_share"], "peer_cpu_share": best["cpu_share"]})
    return found


def markdown(result):
    machine, shape = result["machine"], result["shape"]
    lines = [
        f"{machine['cpu']}, {machine['threads']} threads of {machine['cores']} cores, kernel "
        f"{machine['kernel']}; kernels for {machine['target']}, compiler {machine['compiler']}, "
        f"commit {machine['commit']}. Measured in the same run: reads "
        f"{machine['read_gb_per_s']:.1f} GB/s, f32 FMA {machine['f32_gflop_per_s']:.0f} GFLOP/s, "
        f"int8 dot products {machine['int8_gop_per_s']:.0f} GOP/s. Model: {shape['layers']} "
        f"layers, width {shape['width']}, {shape['heads']} heads over {shape['kv_heads']} K/V "
        f"heads of {shape['head_dim']}, FFN {shape['ffn']}, vocabulary {shape['vocab']}, random "
        f"weights of seed {result['seed']}; f16 cache. Medians, tokens per second.",
        "",
        "| weights | | kvcache | llama.cpp at its best | ratio | limit | share of the limit"
        " (llama.cpp's) |",
        "|---|---|---:|---:|---:|---:|---:|"]
    for row in result["rows"]:
        what = "prefill 512" if row["what"] == "prefill" else f"decode at {row['what']:,}"
        how = f"{row['peer_build']}, flash {'on' if row['peer_flash_attention'] else 'off'}"
        lines.append(
            f"| {row['weights']} | {what} | {row['ours']:.1f} | {row['peer']:.1f} ({how}) | "
            f"{row['ratio']:.2f}× | {row['limit']:.1f} | {row['share_of_limit']:.0%} "
            f"({row['peer_share_of_limit']:.0%}) |")
    choices = {row["weights"]: row["choices"] for row in result["rows"]}
    for weights, same in choices.items():
        others = "".join(f", one of margin {margin:.2g} is not"
                         for margin in same["differing_margins"])
        lines += ["", f"Greedy choices after the prompt's last {same['positions']} tokens, "
                  f"{weights}: {same['same']} equal to llama.cpp's{others}."]
    lines += ["", "Of their threads' time the engines got "
              f"{min(row['cpu_share'] for row in result['rows']):.0%} and "
              f"{min(row['peer_cpu_share'] for row in result['rows']):.0%}: less than all means "
              "that other programs ran."]
    return "\n".join(lines) + "\n"
