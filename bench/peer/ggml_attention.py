"""Times ggml's flash attention with one of its CPU builds. attention_peer.py starts one process per
build.

  ggml_attention.py --libraries FOLDER --build NAME [--threads N] [--seconds X] [--flat] [--cold-megabytes N]
                    < CASES.json

CASES is [{"kind": "decode" or "prefill", "history": n, "queries": n, "batch": 1, "head_dim": n,
"type": "f16", "layouts": [...]}, ...]: `queries` tokens at the end of a history of `history`
tokens, with K and V of that type. "layouts" is optional. Prints one JSON object per case and
layout.

The script calls the libraries' public C functions like llama.cpp: one graph of one node, threads in
a pool, precision f32, a mask in f16. There are two layouts of the history. "default" is llama.cpp's
cache, where a token's heads are neighbours, so that a head's keys are a stride apart. "heads" has
each head's history in one piece, which is ggml's best case.

Each result is compared with double precision over the stored values before it is timed, and refused
if the difference exceeds TOLERANCE. That bound is ggml's own noise: it rounds queries to the type
that K's dot product needs, and in decode over f16 it sums the weighted values in f16. Such a sum
stops growing once it is some thousand times the addend. If all positions of a history have the same
weight, the error therefore exceeds the values themselves (--flat shows it and refuses nothing). The
timed histories have most of their weight on PERIOD positions.

Decode alternates between equal layers of --cold-megabytes in total, because in a model other layers
pass through the processor's caches before a layer is read again. Times are those of one layer.
"""

import argparse
import ctypes
import json
import math
import pathlib
import sys
import time

import numpy as np

import ggml_builds

HEADS, KV_HEADS = 32, 8
PERIOD = 64  # positions after which values repeat
SHADED = 32  # leading values of each key that lower its weight, except in one period
LAYOUTS = ("default", "heads")
TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # ggml's numbers
PREC_F32 = 10
MAX_LAYERS = 500  # a ggml graph holds at most 2,048 nodes
TOLERANCE = 8e-3  # values are below 1


class InitParams(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """ggml's functions with their types, and a backend whose pool has `threads` threads."""

    def __init__(self, folder, build, threads):
        pointer, size, number, real = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64,
                                       ctypes.c_float)
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(ggml_builds.library(folder, build)))
        declared = {
            self.base: {
                "init": (pointer, [InitParams]), "free": (None, [pointer]),
                "new_tensor_4d": (pointer, [pointer, ctypes.c_int, *[number] * 4]),
                "permute": (pointer, [pointer, pointer, *[ctypes.c_int] * 4]),
                "flash_attn_ext": (pointer, [*[pointer] * 5, *[real] * 3]),
                "flash_attn_ext_set_prec": (None, [pointer, ctypes.c_int]),
                "new_graph": (pointer, [pointer]),
                "build_forward_expand": (None, [pointer, pointer]),
                "get_data": (pointer, [pointer]), "nbytes": (size, [pointer]),
                "row_size": (size, [ctypes.c_int, number]),
                "quantize_chunk": (size, [ctypes.c_int, pointer, pointer, *[number] * 3, pointer]),
                "backend_alloc_ctx_tensors": (pointer, [pointer, pointer]),
                "backend_buffer_free": (None, [pointer]),
                "backend_graph_compute": (ctypes.c_int, [pointer, pointer]),
                "threadpool_params_init": (None, [pointer, ctypes.c_int]),
            },
            self.cpu: {
                "backend_cpu_init": (pointer, []),
                "backend_cpu_set_n_threads": (None, [pointer, ctypes.c_int]),
                "threadpool_new": (pointer, [pointer]),
                "backend_cpu_set_threadpool": (None, [pointer, pointer]),
            },
        }
        for library, functions in declared.items():
            for name, (result, arguments) in functions.items():
                function = getattr(library, "ggml_" + name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, threads)
        settings = ctypes.create_string_buffer(1 << 14)  # larger than the struct, filled by ggml
        self.threadpool_params_init(settings, threads)
        self.backend_cpu_set_threadpool(self.backend, self.threadpool_new(settings))

    def array(self, tensor):
        """Returns a tensor's bytes."""
        count = self.nbytes(tensor)
        return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(self.get_data(tensor)))

    def encode(self, kind, values):
        """Returns rows of f32 [rows, values] as bytes [rows, row bytes] of a type."""
        rows, width = values.shape
        values = np.ascontiguousarray(values, np.float32)
        if kind == "bf16":
            bits = values.view(np.uint32)
            return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)
        if kind in ("f32", "f16"):
            return values.astype("<f4" if kind == "f32" else "<f2").view(np.uint8)
        out = np.zeros((rows, self.row_size(TYPES[kind], width)), np.uint8)
        self.quantize_chunk(TYPES[kind], values.ctypes.data, out.ctypes.data, 0, rows, width, None)
        return out


def decode(kind, data):
    """Returns the exact values of encoded rows."""
    rows = len(data)
    if kind == "bf16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kind in ("f32", "f16"):
        return data.view("<f4" if kind == "f32" else "<f2").astype(np.float64)
    blocks = data.reshape(-1, 34 if kind == "q8_0" else 18)
    scales = blocks[:, :2].copy().view("<f2").astype(np.float64)
    codes = blocks[:, 2:]
    if kind == "q8_0":
        values = codes.view(np.int8)
    else:
        values = np.concatenate([codes & 15, codes >> 4], 1).astype(np.int8) - 8
    return (values * scales).reshape(rows, -1)


class Case:
    """The graph of one case in one layout, its values, and the expected result."""

    def __init__(self, ggml, spec, layout, flat, cold_bytes):
        self.ggml, self.spec = ggml, spec
        self.dim, self.cells, self.queries = spec["head_dim"], spec["history"], spec["queries"]
        self.kind = spec["type"]
        random = np.random.default_rng(1)
        shape = (PERIOD * KV_HEADS, self.dim)
        keys, values = (random.uniform(-1, 1, shape) for _ in "kv")
        shaded = keys.copy()
        if not flat:
            shaded[:, :SHADED] = random.uniform(-1, -0.95, (len(keys), SHADED))
        self.bright, self.rows, self.values = (ggml.encode(self.kind, each)
                                               for each in (keys, shaded, values))
        self.bright_at = self.cells // 3 // PERIOD * PERIOD
        self.q = random.uniform(-3, 3, (HEADS, self.queries, self.dim)).astype(np.float32)
        self.q[:, :, :SHADED] = 4
        cold = cold_bytes if spec["kind"] == "decode" else 0
        self.layers = max(1, min(MAX_LAYERS, -(-cold // self.kv_bytes())))
        self.context = ggml.init(InitParams(1 << 22, None, True))
        self.build(layout)

    def build(self, layout):
        ggml = self.ggml
        q = self.tensor("f32", self.dim, self.queries, HEADS)
        mask = self.tensor("f16", self.cells, self.queries, 1)
        self.graph = ggml.new_graph(self.context)
        stored = []
        for _ in range(self.layers):
            stored.append([self.stored(layout) for _ in "kv"])
            views = stored[-1]
            if layout == "default":
                views = [ggml.permute(self.context, each, 0, 2, 1, 3) for each in views]
            self.out = ggml.flash_attn_ext(self.context, q, *views, mask, self.scale(), 0.0, 0.0)
            ggml.flash_attn_ext_set_prec(self.out, PREC_F32)
            ggml.build_forward_expand(self.graph, self.out)
        self.buffer = ggml.backend_alloc_ctx_tensors(self.context, ggml.backend)
        ggml.array(q)[:] = self.q.reshape(-1).view(np.uint8)
        ggml.array(mask)[:] = self.visible().reshape(-1).view(np.uint8)
        for tensor, rows in zip(stored[0], (self.rows, self.values)):
            self.fill(ggml.array(tensor), rows, layout)
        for layer in stored[1:]:
            for tensor, first in zip(layer, stored[0]):
                ggml.array(tensor)[:] = ggml.array(first)

    def stored(self, layout):
        if layout == "default":
            return self.tensor(self.kind, self.dim, KV_HEADS, self.cells)
        return self.tensor(self.kind, self.dim, self.cells, KV_HEADS)

    def tensor(self, kind, *dims):
        return self.ggml.new_tensor_4d(self.context, TYPES[kind], *dims, 1)

    def fill(self, target, source, layout):
        target = target.reshape((self.cells, KV_HEADS, -1) if layout == "default" else
                                (KV_HEADS, self.cells, -1))
        for first in range(0, self.cells, PERIOD):
            count = min(PERIOD, self.cells - first)
            if first == self.bright_at and source is self.rows:
                rows = self.bright.reshape(PERIOD, KV_HEADS, -1)
            else:
                rows = source.reshape(PERIOD, KV_HEADS, -1)
            if layout == "default":
                target[first:first + count] = rows[:count]
            else:
                target[:, first:first + count] = rows[:count].transpose(1, 0, 2)

    def scale(self):
        return 1.0 / math.sqrt(self.dim)

    def visible(self):
        """Returns the mask: -inf after each query's own position."""
        mask = np.zeros((self.queries, self.cells), "<f2")
        for i in range(self.queries):
            mask[i, self.cells - self.queries + i + 1:] = -np.inf
        return mask

    def kv_bytes(self):
        return 2 * KV_HEADS * self.cells * self.ggml.row_size(TYPES[self.kind], self.dim)

    def work(self):
        """Returns, for decode, the GB to read, else the GFLOP over the visible pairs of query and
        key. attention_bench counts in the same way."""
        if self.spec["kind"] == "decode":
            return 1e-9 * self.kv_bytes()
        seen = self.cells - (self.queries - 1) / 2
        return 4e-9 * self.queries * HEADS * self.dim * seen

    def run(self):
        status = self.ggml.backend_graph_compute(self.ggml.backend, self.graph)
        if status != 0:
            raise RuntimeError(f"ggml's graph failed with status {status}")

    def error(self):
        """Returns the largest difference from double precision over some rows."""
        found = self.ggml.array(self.out).view("<f4").reshape(self.queries, HEADS, self.dim)
        bright, keys, values = (decode(self.kind, rows).reshape(PERIOD, KV_HEADS, self.dim)
                                for rows in (self.bright, self.rows, self.values))
        worst = 0.0
        for query in sorted({0, self.queries // 2, self.queries - 1}):
            seen = self.cells - self.queries + query + 1
            shown = np.clip(seen - self.bright_at - np.arange(PERIOD), 0, 1)
            copies = (seen - np.arange(PERIOD) + PERIOD - 1) // PERIOD - shown
            for head in range(0, HEADS, 5):
                kv_head = head // (HEADS // KV_HEADS)
                q = self.q[head, query].astype(np.float64) * self.scale()
                weights = (shown * np.exp(bright[:, kv_head] @ q)
                           + copies * np.exp(keys[:, kv_head] @ q))
                right = weights / weights.sum() @ values[:, kv_head]
                worst = max(worst, float(np.abs(right - found[query, head]).max()))
        return worst

    def close(self):
        self.ggml.backend_buffer_free(self.buffer)
        self.ggml.free(self.context)


def timed(case):
    """Returns the milliseconds of one layer."""
    begin = time.perf_counter()
    case.run()
    return 1e3 * (time.perf_counter() - begin) / case.layers


def measure(case, first, seconds):
    """Returns the milliseconds of the runs that fit into `seconds`, at least two, ascending. If the
    first run, which was checked, took much longer than `seconds`, returns only its time."""
    if first * case.layers > 1e4 * seconds:
        return [first]
    times, start = [], time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < seconds:
        times.append(timed(case))
    return sorted(times)


def report(case, spec, build, layout, error, times):
    return {**spec, "name": f"{spec['kind']} {spec['history']} {spec['type']} {layout}",
            "build": build, "layout": layout,
            "best_ms": times[0], "median_ms": times[len(times) // 2],
            "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)],
            "work": case.work(), "runs": len(times), "layers": case.layers, "error": error}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=pathlib.Path, required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.5,
                        help="seconds of timing per case and layout")
    parser.add_argument("--cold-megabytes", type=int, default=512)
    parser.add_argument("--flat", action="store_true",
                        help="give all positions about the same weight, and refuse no result")
    args = parser.parse_args()
    ggml = Ggml(args.libraries, args.build, args.threads)
    for spec in json.load(sys.stdin):
        for layout in spec.pop("layouts", LAYOUTS):
            case = Case(ggml, spec, layout, args.flat, args.cold_megabytes << 20)
            first = timed(case)
            error = case.error()
            if not (error < TOLERANCE or args.flat):
                sys.exit(f"ggml_attention: {spec}, {layout}, {args.build}: differs from double "
                         f"precision by {error}; must be below {TOLERANCE}")
            times = measure(case, first, args.seconds)
            print(json.dumps(report(case, spec, args.build, layout, error, times)), flush=True)
            case.close()


if __name__ == "__main__":
    main()
