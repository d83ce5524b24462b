"""Splits a GGUF file into parts, as llama.cpp's gguf-split does: the first part has the metadata."""

import struct

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT16, _INT32 = 8, 9, 2, 5
_ALIGNMENT = 32


def _padded(data):
    return data + bytes(-len(data) % _ALIGNMENT)


def _text(text):
    return struct.pack("<Q", len(text)) + text.encode()


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return values[0]

    def string(self):
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size:self.at].decode()

    def skip(self, kind):
        if kind == _STRING:
            self.string()
        elif kind == _ARRAY:
            element, count = self.take("I"), self.take("Q")
            for _ in range(count):
                self.skip(element)
        else:
            self.at += _WIDTHS[kind]


class Whole:
    """The parts of a file, as bytes."""

    def __init__(self, data):
        reader = _Reader(data)
        assert reader.take("4s") == b"GGUF" and reader.take("I") == 3
        tensors, keys = reader.take("Q"), reader.take("Q")
        self.key_count, begin = keys, reader.at
        for _ in range(keys):
            reader.string()
            reader.skip(reader.take("I"))
        self.keys = data[begin:reader.at]
        rows = []
        for _ in range(tensors):
            start = reader.at
            reader.string()
            for _ in range(reader.take("I")):
                reader.take("Q")
            reader.take("I")
            rows.append((data[start:reader.at], reader.take("Q")))
        begin = reader.at + -reader.at % _ALIGNMENT
        ends = [offset for _, offset in rows[1:]] + [len(data) - begin]
        # Each tensor: what describes it, without its offset, and its bytes.
        self.tensors = [(head, data[begin + offset:begin + end])
                        for (head, offset), end in zip(rows, ends)]


def part(whole, tensors, number, count, total, metadata):
    """Returns the bytes of one part with these tensors."""
    keys = whole.keys if metadata else b""
    for key, kind, form, value in (("split.no", _UINT16, "H", number),
                                   ("split.count", _UINT16, "H", count),
                                   ("split.tensors.count", _INT32, "i", total)):
        keys += _text(key) + struct.pack("<I" + form, kind, value)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 3 + (whole.key_count if metadata else 0))
    head += keys
    data = b""
    for row, values in tensors:
        head += row + struct.pack("<Q", len(data))
        data = _padded(data + values)
    return _padded(head) + data


def split(data, count, empty_first=False):
    """Returns the bytes of `count` parts; `empty_first`: the first has no tensors."""
    whole = Whole(data)
    groups = count - 1 if empty_first else count
    size = -(-len(whole.tensors) // groups)
    chosen = [[]] if empty_first else []
    chosen += [whole.tensors[i * size:(i + 1) * size] for i in range(groups)]
    return [part(whole, tensors, i, count, len(whole.tensors), i == 0)
            for i, tensors in enumerate(chosen)]


def write(folder, name, parts):
    """Writes parts under their usual names; returns the paths."""
    paths = []
    for i, data in enumerate(parts):
        path = folder / f"{name}-{i + 1:05}-of-{len(parts):05}.gguf"
        path.write_bytes(data)
        paths.append(path)
    return paths
