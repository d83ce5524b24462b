"""Times Gemma 3's vision tower in ggml's operations with one of ggml's CPU builds. vision_peer.py starts one process per
build.

  ggml_tower.py --libraries FOLDER --build NAME --projector FILE --pixels PIXELS.npy --out OUT.npy [--threads N] [--rounds N]

The npm packages with fast builds of ggml have no vision towers, and the one with towers has a slow ggml. So this script
builds the graph that llama.cpp's clip.cpp builds of a SigLIP tower (layers, with flash attention over f16 keys or without), from
the file's weights, and computes it as llama.cpp does. The patches are unfolded before the clock starts, and what follows the layers is
computed by numpy, outside of the time: both favour ggml. Writes the embeddings; prints for both kinds of attention the seconds of
each round: of the wall clock and of the processor.
"""

import argparse
import ctypes as c
import json
import pathlib
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests/oracle")]

import ggml_attention  # noqa: E402  (the path comes first)
import gguf_file  # noqa: E402

F32, F16 = 0, 1


class Graph:
    """ggml's graph of the layers."""

    def __init__(self, ggml, file, patches, flash):
        self.ggml, self.file, self.flash = ggml, file, flash
        key = lambda name: file.metadata["clip.vision." + name]  # noqa: E731
        self.width, self.heads = key("embedding_length"), key("attention.head_count")
        self.eps, self.count = key("attention.layer_norm_epsilon"), len(patches)
        self.context = ggml.init(ggml_attention.InitParams(1 << 24, None, True))
        self.values = []  # tensors, and the bytes that they get
        for name, arguments in {
                "mul_mat": [c.c_void_p] * 2, "add": [c.c_void_p] * 2, "mul": [c.c_void_p] * 2,
                "norm": [c.c_void_p, c.c_float], "gelu": [c.c_void_p], "cont": [c.c_void_p],
                "cast": [c.c_void_p, c.c_int], "soft_max_ext": [c.c_void_p] * 2 + [c.c_float] * 2,
                "reshape_3d": [c.c_void_p] + [c.c_int64] * 3,
                "reshape_2d": [c.c_void_p] + [c.c_int64] * 2,
                "cont_2d": [c.c_void_p] + [c.c_int64] * 2}.items():
            function = getattr(ggml.base, "ggml_" + name)
            function.restype, function.argtypes = c.c_void_p, [c.c_void_p, *arguments]
            setattr(self, "_" + name, function)
        kernel = file.tensor("v.patch_embd.weight").reshape(self.width, -1)
        x = self.op("mul_mat", self.given(kernel, F16), self.given(patches, F32))
        x = self.op("add", x, self.weight("v.patch_embd.bias"))
        x = self.op("add", x, self.weight("v.position_embd.weight"))
        for i in range(key("block_count")):
            x = self.layer(x, f"v.blk.{i}.")
        self.out = x
        self.graph = ggml.new_graph(self.context)
        ggml.build_forward_expand(self.graph, x)
        self.allocate()

    def op(self, name, *arguments):
        return getattr(self, "_" + name)(self.context, *arguments)

    def given(self, array, kind):
        data = np.ascontiguousarray(array, np.float32 if kind == F32 else np.float16)
        dims = [*data.shape[::-1], 1, 1, 1][:4]
        tensor = self.ggml.new_tensor_4d(self.context, kind, *dims)
        self.values.append((tensor, data.view(np.uint8).reshape(-1)))
        return tensor

    def weight(self, name):
        """A tensor of the file, as it is stored."""
        info = self.file.tensors[name]
        dims = [*info.dims, 1, 1, 1][:4]
        tensor = self.ggml.new_tensor_4d(self.context, info.type, *dims)
        start = self.file._data + info.offset
        self.values.append((tensor, self.file._bytes[start:start + self.ggml.nbytes(tensor)]))
        return tensor

    def linear(self, x, name):
        x = self.op("mul_mat", self.weight(name + ".weight"), x)
        return self.op("add", x, self.weight(name + ".bias"))

    def normal(self, x, name):
        x = self.op("mul", self.op("norm", x, self.eps), self.weight(name + ".weight"))
        return self.op("add", x, self.weight(name + ".bias"))

    def attention(self, h, prefix):
        dim, ggml = self.width // self.heads, self.ggml
        q, k, v = (self.op("reshape_3d", self.linear(h, prefix + name), dim, self.heads, self.count)
                   for name in ("attn_q", "attn_k", "attn_v"))
        q, k = (ggml.permute(self.context, each, 0, 2, 1, 3) for each in (q, k))
        scale = 1 / np.sqrt(dim)
        if self.flash:
            v = ggml.permute(self.context, v, 0, 2, 1, 3)
            k, v = self.op("cast", k, F16), self.op("cast", v, F16)
            out = ggml.flash_attn_ext(self.context, q, k, v, None, scale, 0.0, 0.0)
            ggml.flash_attn_ext_set_prec(out, ggml_attention.PREC_F32)
            out = self.op("reshape_2d", out, self.width, self.count)
        else:
            v = self.op("cont", ggml.permute(self.context, v, 1, 2, 0, 3))
            scores = self.op("soft_max_ext", self.op("mul_mat", k, q), None, scale, 0.0)
            out = ggml.permute(self.context, self.op("mul_mat", v, scores), 0, 2, 1, 3)
            out = self.op("cont_2d", out, self.width, self.count)
        return self.linear(out, prefix + "attn_out")

    def layer(self, x, prefix):
        x = self.op("add", x, self.attention(self.normal(x, prefix + "ln1"), prefix))
        h = self.linear(self.normal(x, prefix + "ln2"), prefix + "ffn_up")
        return self.op("add", self.linear(self.op("gelu", h), prefix + "ffn_down"), x)

    def allocate(self):
        """Weights and inputs have memory of their own; results share what an allocator of graphs plans."""
        base, ggml = self.ggml.base, self.ggml
        total = sum(ggml.nbytes(tensor) + 64 for tensor, _ in self.values)
        self.memory = np.zeros(total + 64, np.uint8)
        for name, result, arguments in (
                ("ggml_backend_cpu_buffer_from_ptr", c.c_void_p, [c.c_void_p, c.c_size_t]),
                ("ggml_backend_tensor_alloc", c.c_int, [c.c_void_p] * 3),
                ("ggml_backend_get_default_buffer_type", c.c_void_p, [c.c_void_p]),
                ("ggml_gallocr_new", c.c_void_p, [c.c_void_p]),
                ("ggml_gallocr_alloc_graph", c.c_bool, [c.c_void_p] * 2)):
            function = getattr(base, name)
            function.restype, function.argtypes = result, arguments
        address = -(-self.memory.ctypes.data // 64) * 64
        buffer = base.ggml_backend_cpu_buffer_from_ptr(address, total)
        for tensor, data in self.values:
            base.ggml_backend_tensor_alloc(buffer, tensor, address)
            ggml.array(tensor)[:] = data
            address += -(-len(data) // 64) * 64
        kind = base.ggml_backend_get_default_buffer_type(ggml.backend)
        if not base.ggml_gallocr_alloc_graph(base.ggml_gallocr_new(kind), self.graph):
            sys.exit("ggml_tower: no memory for the graph")

    def run(self):
        wall, processor = time.perf_counter(), time.process_time()
        if self.ggml.backend_graph_compute(self.ggml.backend, self.graph) != 0:
            sys.exit("ggml_tower: the graph failed")
        return time.perf_counter() - wall, time.process_time() - processor

    def states(self):
        return self.ggml.array(self.out).view("<f4").reshape(self.count, self.width)


def patches_of(file, pixels):
    p = file.metadata["clip.vision.patch_size"]
    rows, columns = pixels.shape[0] // p, pixels.shape[1] // p
    x = pixels.reshape(rows, p, columns, p, 3).transpose(0, 2, 4, 1, 3)
    return x.reshape(rows * columns, 3 * p * p).astype(np.float16).astype(np.float32)


def embeddings(file, x, side):
    eps = file.metadata["clip.vision.attention.layer_norm_epsilon"]
    merge = file.metadata.get("clip.vision.projector.scale_factor", 4)
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    x = x * file.tensor("v.post_ln.weight") + file.tensor("v.post_ln.bias")
    x = x.reshape(side // merge, merge, side // merge, merge, -1).mean((1, 3)).reshape(-1, x.shape[-1])
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * file.tensor("mm.soft_emb_norm.weight")
    return x @ file.tensor("mm.input_projection.weight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("libraries", "projector", "pixels", "out"):
        parser.add_argument("--" + name, type=pathlib.Path, required=True)
    parser.add_argument("--build", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    ggml = ggml_attention.Ggml(args.libraries, args.build, args.threads)
    file = gguf_file.GgufFile(args.projector)
    pixels = np.load(args.pixels)
    patches = patches_of(file, pixels)
    times = {}
    for name, flash in (("flash", True), ("plain", False)):
        graph = Graph(ggml, file, patches, flash)
        times[name] = [graph.run() for _ in range(args.rounds)]
        side = pixels.shape[0] // file.metadata["clip.vision.patch_size"]
        result = embeddings(file, graph.states().astype(np.float64), side)
        np.save(args.out.with_suffix(f".{name}.npy"), result)
        del graph
    print(json.dumps(times))


if __name__ == "__main__":
    main()
