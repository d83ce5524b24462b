"""Computes llama.cpp's embeddings of a picture, for compare.py and bench/peer/vision_peer.py.

usage: llama_cpp.py LIBRARY PROJECTOR.gguf PIXELS.npy OUT.npy THREADS REPEATS

PIXELS [height, width, 3] are normalised f32 values of the tower's size. The npm package of the library has a binding of
llama.cpp whose calls are not enough, but it exports those of llama.cpp; this program calls those of towers. They are C++: the layouts
below are those of one release of the package. Prints the seconds of each repeat: of the wall clock and of the processor.
"""

import ctypes as c
import os
import sys
import time

import numpy as np


class Params(c.Structure):
    """clip_context_params; what follows is zero."""
    _fields_ = [("use_gpu", c.c_bool), ("flash_attention", c.c_int32), ("min_tokens", c.c_int32),
                ("max_tokens", c.c_int32), ("warmup", c.c_bool), ("rest", c.c_uint8 * 107)]


class Contexts(c.Structure):
    _fields_ = [("vision", c.c_void_p), ("audio", c.c_void_p)]


class Vector(c.Structure):
    """std::vector<float>."""
    _fields_ = [("begin", c.c_void_p), ("end", c.c_void_p), ("capacity_end", c.c_void_p)]


class Image(c.Structure):
    """clip_image_f32."""
    _fields_ = [("flags", c.c_uint16), ("values", Vector), ("width", c.c_int32),
                ("height", c.c_int32)]


class Library:
    def __init__(self, path):
        self._library = c.CDLL(path, mode=os.RTLD_LAZY)
        self.init = self._call("_Z9clip_initPKc19clip_context_params", Contexts, c.c_char_p, Params)
        self.encode = self._call(
            "_Z17clip_image_encodeP8clip_ctxiPK14clip_image_f32RSt6vectorIfSaIfEE", c.c_bool,
            c.c_void_p, c.c_int32, c.POINTER(Image), c.POINTER(Vector))
        self.tokens = self._call("_Z20clip_n_output_tokensPK8clip_ctxPK14clip_image_f32", c.c_int32,
                                 c.c_void_p, c.POINTER(Image))
        self.width = self._call("_Z18clip_n_mmproj_embdPK8clip_ctx", c.c_int32, c.c_void_p)

    def _call(self, name, result, *arguments):
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        return function


def main():
    library_path, projector, pixels_path, out, threads, repeats = sys.argv[1:]
    library = Library(library_path)
    pixels = np.ascontiguousarray(np.load(pixels_path), np.float32)
    context = library.init(projector.encode(), Params(min_tokens=-1, max_tokens=-1)).vision
    if not context:
        sys.exit("llama.cpp does not load the projector")
    begin = pixels.ctypes.data
    end = begin + pixels.nbytes
    image = Image(values=Vector(begin, end, end), width=pixels.shape[1], height=pixels.shape[0])
    count = library.tokens(context, c.byref(image)) * library.width(context)
    # The library makes the vector of as many values as it has, so it allocates nothing.
    values = np.zeros(count, np.float32)
    begin = values.ctypes.data
    vector = Vector(begin, begin + values.nbytes, begin + values.nbytes)
    for _ in range(int(repeats)):
        wall, processor = time.perf_counter(), time.process_time()
        if not library.encode(context, int(threads), c.byref(image), c.byref(vector)):
            sys.exit("llama.cpp does not encode the picture")
        print(time.perf_counter() - wall, time.process_time() - processor)
    if vector.begin != begin or vector.end != begin + values.nbytes:
        sys.exit("llama.cpp made another number of values")
    np.save(out, values)


if __name__ == "__main__":
    main()
