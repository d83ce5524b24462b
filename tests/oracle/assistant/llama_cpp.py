"""Computes llama.cpp's logits of a draft head, for compare.py.

usage: llama_cpp.py FOLDER TARGET HEAD LENGTHS TOKENS.npy OUT.npy    (LENGTHS: 1,40,300)

FOLDER has the libraries of node-llama-cpp. Its bindings have no call for a head that reads another model's
cache, so this program calls the C library. The layouts below are those of one release, whose number is part of
the library's name; the defaults are compared, so that another layout is an error.
"""

import ctypes as c
import pathlib
import sys

import numpy as np

RELEASE = "v0.5.0"
DRAFTS = 5
UNSET = -1.0  # of a float: from the model


class ModelParams(c.Structure):
    _fields_ = [("bytes", c.c_uint8 * 80)]


class ContextParams(c.Structure):
    _fields_ = [
        *[(name, c.c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq",
                                          "n_outputs_max", "n_outputs_max_per_seq")],
        *[(name, c.c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type", "rope_scaling",
                                         "pooling", "attention", "flash_attention")],
        *[(name, c.c_float) for name in ("rope_base", "rope_scale", "yarn_ext", "yarn_attn",
                                         "yarn_fast", "yarn_slow")],
        ("yarn_context", c.c_uint32), ("defrag", c.c_float),
        ("eval_call", c.c_void_p), ("eval_data", c.c_void_p),
        ("type_k", c.c_int32), ("type_v", c.c_int32),
        ("abort_call", c.c_void_p), ("abort_data", c.c_void_p),
        *[(name, c.c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload",
                                        "swa_full", "kv_unified")],
        ("samplers", c.c_void_p), ("n_samplers", c.c_size_t), ("ctx_other", c.c_void_p)]


class Batch(c.Structure):
    _fields_ = [("count", c.c_int32), ("token", c.POINTER(c.c_int32)),
                ("embd", c.POINTER(c.c_float)), ("position", c.POINTER(c.c_int32)),
                ("sequences", c.POINTER(c.c_int32)), ("sequence", c.POINTER(c.POINTER(c.c_int32))),
                ("logits", c.POINTER(c.c_int8))]


class Library:
    def __init__(self, folder):
        folder = pathlib.Path(folder)
        c.CDLL(str(folder / "libggml-base.so"), mode=c.RTLD_GLOBAL)
        ggml = c.CDLL(str(folder / f"libggml.{RELEASE}.so"), mode=c.RTLD_GLOBAL)
        ggml.ggml_backend_load_all_from_path(c.c_char_p(f"{folder}/".encode()))
        self._llama = c.CDLL(str(folder / f"libllama.{RELEASE}.so"))
        self.model_params = self._call("llama_model_default_params", ModelParams)
        self.context_params = self._call("llama_context_default_params", ContextParams)
        self.load = self._call("llama_model_load_from_file", c.c_void_p, c.c_char_p, ModelParams)
        self.make_context = self._call("llama_init_from_model", c.c_void_p, c.c_void_p,
                                       ContextParams)
        self.tokens = self._call("llama_vocab_n_tokens", c.c_int32, c.c_void_p)
        self.vocab = self._call("llama_model_get_vocab", c.c_void_p, c.c_void_p)
        self.hidden_size = self._call("llama_model_n_embd", c.c_int32, c.c_void_p)
        self.make_batch = self._call("llama_batch_init", Batch, c.c_int32, c.c_int32, c.c_int32)
        self.decode = self._call("llama_decode", c.c_int32, c.c_void_p, Batch)
        self.logits = self._call("llama_get_logits_ith", c.POINTER(c.c_float), c.c_void_p,
                                 c.c_int32)
        # Declared in a header of its own, for C++.
        self.keep_states = self._call("_Z26llama_set_embeddings_nextnP13llama_contextbb", None,
                                      c.c_void_p, c.c_bool, c.c_bool)
        self.state = self._call("_Z30llama_get_embeddings_nextn_ithP13llama_contexti",
                                c.POINTER(c.c_float), c.c_void_p, c.c_int32)

    def _call(self, name, result, *arguments):
        function = getattr(self._llama, name)
        function.restype, function.argtypes = result, arguments
        return function

    def context(self, model, size, other=None):
        params = self.context_params()
        defaults = (params.n_ctx, params.n_batch, params.yarn_slow, params.defrag, params.type_v,
                    params.swa_full, params.ctx_other)
        if defaults != (512, 2048, UNSET, UNSET, 1, True, None):
            sys.exit(f"llama.cpp has another layout: {defaults}")
        params.n_ctx = params.n_batch = params.n_ubatch = params.n_outputs_max_per_seq = size
        params.n_threads = params.n_threads_batch = 1
        params.flash_attention = params.type_k = params.type_v = 0  # off; F32
        params.swa_full = False
        params.ctx_type, params.ctx_other = (0, None) if other is None else (1, other)
        made = self.make_context(model, params)
        self.keep_states(made, True, other is not None)
        return made

    def evaluate(self, context, tokens, first, state=None):
        batch = self.make_batch(len(tokens), 0, 1)
        batch.count = len(tokens)
        if state is not None:
            batch.embd = state.ctypes.data_as(c.POINTER(c.c_float))
        for i, token in enumerate(tokens):
            batch.token[i], batch.position[i] = int(token), first + i
            batch.sequences[i], batch.sequence[i][0], batch.logits[i] = 1, 0, 1
        if self.decode(context, batch) != 0:
            sys.exit("llama.cpp failed to decode")


def array(values, count):
    return np.ctypeslib.as_array(values, (count,)).copy()


def main():
    folder, target_path, head_path, lengths, tokens_path, out = sys.argv[1:]
    llama = Library(folder)
    tokens = np.load(tokens_path)
    models = [llama.load(path.encode(), llama.model_params()) for path in (target_path, head_path)]
    size, vocab = llama.hidden_size(models[0]), llama.tokens(llama.vocab(models[0]))
    target = llama.context(models[0], 512)
    head = llama.context(models[1], 512, target)
    rows, done = [], 0
    for length in map(int, lengths.split(",")):
        llama.evaluate(target, tokens[done:length], done)
        state = array(llama.state(target, length - done - 1), size)
        done = length
        for token in tokens[length:length + DRAFTS]:
            llama.evaluate(head, [token], length, state)
            rows.append(array(llama.logits(head, 0), vocab))
            state = array(llama.state(head, 0), size)
    np.save(out, np.array(rows))


if __name__ == "__main__":
    main()
