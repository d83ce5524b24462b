"""Makes llama.cpp's state file of a long history from that of a shorter one.

The content of keys and values does not change the speed of reading them. Therefore a history of
16,384 tokens for timing need not be evaluated: the cells of an evaluated one are repeated with
consecutive positions. The file has (little-endian):

  magic "qsgg", version 3, token count, tokens
  1 stream; cell count; per cell: position, 1 sequence, sequence 0
  V transposed (0 or 1), layer count
  per layer: K's type, bytes of a row (u64), rows [cells]
  per layer: V's type, bytes of a row (u64), rows [cells]                      if not transposed
             V's type, bytes of a value, values of a row, [values of a row][cells]  if transposed

Flash attention needs V as rows, the other path needs it transposed. `write` converts both ways.
"""

import struct

import numpy as np

MAGIC, VERSION = 0x67677371, 3


def read(path):
    """Returns (tokens, [(K type, K rows)], [(V type, V rows)], bytes of a V value)."""
    data = np.fromfile(path, np.uint8)
    at = 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def block(size):
        nonlocal at
        at += size
        return data[at - size:at]

    magic, version, count = take("III")
    if (magic, version) != (MAGIC, VERSION):
        raise ValueError(f"{path}: magic is {magic:#x} and version is {version}; must be "
                         f"{MAGIC:#x} and {VERSION}")
    tokens = block(4 * count).view(np.int32)
    streams, cells = take("II")
    if streams != 1 or cells != count:
        raise ValueError(f"{path}: {streams} streams, {cells} cells, {count} tokens")
    block(12 * cells)
    transposed, layers = take("II")
    keys, values, value_bytes = [], [], 2
    for _ in range(layers):
        kind, row = take("iQ")
        keys.append((kind, block(cells * row).reshape(cells, row)))
    for _ in range(layers):
        if transposed:
            kind, value_bytes, width = take("iII")
            columns = block(cells * width * value_bytes).reshape(width, cells, value_bytes)
            values.append((kind, columns.transpose(1, 0, 2).reshape(cells, -1)))
        else:
            kind, row = take("iQ")
            values.append((kind, block(cells * row).reshape(cells, row)))
    if at != data.size:
        raise ValueError(f"{path}: {data.size - at} bytes follow the last layer; must be none")
    return tokens, keys, values, value_bytes


def write(path, state, cells, transposed):
    """Writes a state of `cells` cells, which repeats the given state's cells."""
    tokens, keys, values, value_bytes = state
    source = np.arange(cells) % len(tokens)
    with open(path, "wb") as out:
        out.write(struct.pack("<III", MAGIC, VERSION, cells))
        tokens[source].tofile(out)
        out.write(struct.pack("<II", 1, cells))
        np.stack([np.arange(cells), np.ones(cells), np.zeros(cells)], 1).astype("<i4").tofile(out)
        out.write(struct.pack("<II", transposed, len(keys)))
        for kind, rows in keys:
            out.write(struct.pack("<iQ", kind, rows.shape[1]))
            rows[source].tofile(out)
        for kind, rows in values:
            if transposed:
                width = rows.shape[1] // value_bytes
                out.write(struct.pack("<iII", kind, value_bytes, width))
                columns = rows.reshape(-1, width, value_bytes).transpose(1, 0, 2)
                columns[:, source].tofile(out)
            else:
                out.write(struct.pack("<iQ", kind, rows.shape[1]))
                rows[source].tofile(out)
