"""Small random pictures as files of every format and form that the decoders read.

Pillow writes most of them; files() writes by hand what Pillow cannot: interlaced PNG, PNG of 16 and of few bits, GIF
whose frame is a part of the screen, BMP of 16 bits.
"""

import io
import struct
import zlib

import numpy
from PIL import Image

WIDTHS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 40)


def size(random):
    return int(random.choice(WIDTHS)), int(random.choice(WIDTHS))


def smooth(random, width, height, channels):
    """Waves and a little noise, so that lossy formats do not clip everything."""
    y, x = numpy.mgrid[0:height, 0:width]
    planes = []
    for _ in range(channels):
        a, b, c = random.random(3)
        wave = 127 + 120 * numpy.sin(a * x + b * y + 6 * c)
        planes.append(wave + random.integers(-20, 21, (height, width)))
    return numpy.clip(numpy.stack(planes, 2), 0, 255).astype(numpy.uint8)


def image(random, mode):
    width, height = size(random)
    channels = {"1": 1, "L": 1, "LA": 2, "P": 1, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    pixels = smooth(random, width, height, channels)
    if mode == "1":
        return Image.fromarray(pixels[:, :, 0]).convert("1")
    if mode in ("L", "P"):
        colours = int(random.integers(1, 257))
        plane = Image.fromarray((pixels[:, :, 0] % (colours if mode == "P" else 256)).astype(numpy.uint8))
        if mode == "P":
            plane.putpalette(random.integers(0, 256, colours * 3, numpy.uint8).tobytes())
        return plane
    return Image.fromarray(pixels, mode)


def exif(orientation, order="<", type_=3):
    block = {"<": b"II", ">": b"MM"}[order]
    block += struct.pack(order + "HIH", 42, 8, 2)
    block += struct.pack(order + "HHIHH", 0x0100, 3, 1, 17, 0)
    value = struct.pack(order + {1: "B3x", 3: "HH", 4: "I"}[type_], *([orientation, 0] if type_ == 3 else [orientation]))
    block += struct.pack(order + "HHI", 0x0112, type_, 1) + value
    return b"Exif\0\0" + block + struct.pack(order + "I", 0)


def random_exif(random):
    if random.random() < 0.5:
        return {}
    return {"exif": exif(int(random.integers(0, 10)), str(random.choice(["<", ">"])), int(random.choice([1, 3, 4])))}


def saved(picture, format_, **options):
    out = io.BytesIO()
    picture.save(out, format_, **options)
    return out.getvalue()


# ---- PNG ---------------------------------------------------------------------------------


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def packed(samples, bits):
    """Rows of samples (height, width * channels) as PNG stores them, unfiltered."""
    if bits == 16:
        body = samples.astype(">u2").view(numpy.uint8).reshape(samples.shape[0], -1)
    elif bits == 8:
        body = samples.astype(numpy.uint8)
    else:
        planes = (samples[:, :, None] >> numpy.arange(bits - 1, -1, -1)) & 1
        body = numpy.packbits(planes.reshape(samples.shape[0], -1).astype(numpy.uint8), axis=1)
    return b"".join(b"\0" + row.tobytes() for row in body)


def png(random, colour_type, bits, interlaced=False, transparency=False, block=None):
    width, height = size(random)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour_type]
    samples = random.integers(0, 1 << bits, (height, width, channels))
    if interlaced:
        data = b""
        for x, y, dx, dy in ADAM7:
            part = samples[y::dy, x::dx]
            if part.size:
                data += packed(part.reshape(part.shape[0], -1), bits)
    else:
        data = packed(samples.reshape(height, -1), bits)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, interlaced))
    out += chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"tEXt", b"Comment\0none")
    if block and random.random() < 0.5:
        out += chunk(b"eXIf", block[6:])
        block = None
    if colour_type == 3:
        out += chunk(b"PLTE", random.integers(0, 256, 3 << bits, numpy.uint8).tobytes())
        if transparency:
            out += chunk(b"tRNS", random.integers(0, 256, 1 << bits, numpy.uint8).tobytes())
    elif transparency and colour_type in (0, 2):
        out += chunk(b"tRNS", samples[0, 0].astype(">u2").tobytes())
    packed_data = zlib.compress(data)
    cut = len(packed_data) // 2
    out += chunk(b"IDAT", packed_data[:cut]) + chunk(b"IDAT", packed_data[cut:])
    if block:
        out += chunk(b"eXIf", block[6:])
    return out + chunk(b"IEND", b"")


def pngs(random):
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA"):
        yield f"png-{mode}", saved(image(random, mode), "PNG", **random_exif(random))
    forms = [(0, b) for b in (1, 2, 4, 8, 16)] + [(3, b) for b in (1, 2, 4, 8)] + [(t, b) for t in (2, 4, 6) for b in (8, 16)]
    for colour_type, bits in forms:
        for interlaced in (False, True):
            for transparency in (False, True):
                block = random_exif(random).get("exif")
                yield (f"png-{colour_type}-{bits}-{'i' if interlaced else 'n'}{'t' if transparency else ''}",
                       png(random, colour_type, bits, interlaced, transparency, block))


# ---- JPEG, WebP --------------------------------------------------------------------------


def jpegs(random):
    for mode in ("L", "RGB", "CMYK"):
        for progressive in (False, True):
            for subsampling in (0, 1, 2):
                yield (f"jpeg-{mode}-{'p' if progressive else 'b'}{subsampling}",
                       saved(image(random, mode), "JPEG", quality=int(random.integers(5, 100)), progressive=progressive,
                             subsampling=subsampling, **random_exif(random)))


def webps(random):
    for mode in ("RGB", "RGBA"):
        for lossless in (False, True):
            yield (f"webp-{mode}-{'l' if lossless else 'd'}",
                   saved(image(random, mode), "WEBP", lossless=lossless, quality=int(random.integers(1, 101)),
                         **random_exif(random)))
            first = image(random, mode)
            more = Image.fromarray(smooth(random, *first.size, 4), "RGBA").convert(mode)
            yield (f"webp-{mode}-{'l' if lossless else 'd'}-moving",
                   saved(first, "WEBP", lossless=lossless, save_all=True, append_images=[more], duration=100,
                         **random_exif(random)))


# ---- GIF ---------------------------------------------------------------------------------


def lzw(indices, bits):
    """Compresses indices, with a clear code before the table is full or, at times, long after."""
    clear, end = 1 << bits, (1 << bits) + 1
    table = {(i,): i for i in range(clear)}
    codes, length, next_ = [(clear, bits + 1)], bits + 1, end + 1
    text = ()
    for index in indices:
        if text + (index,) in table:
            text += (index,)
            continue
        codes.append((table[text], length))
        if next_ < 4096:
            table[text + (index,)] = next_
            if next_ == 1 << length and length < 12:
                length += 1
            next_ += 1
        text = (index,)
    codes.append((table[text], length))
    if next_ < 4096 and next_ == 1 << length and length < 12:
        length += 1
    codes.append((end, length))
    number, filled = 0, 0
    for code, width in codes:
        number |= code << filled
        filled += width
    data = number.to_bytes((filled + 7) // 8, "little")
    return bytes([bits]) + b"".join(bytes([len(data[i:i + 255])]) + data[i:i + 255] for i in range(0, len(data), 255)) + b"\0"


def gif(random, beyond=False):
    width, height = size(random)
    screen = (width + int(random.integers(0, 4)), height + int(random.integers(0, 4)))
    x = int(random.integers(0, screen[0] - width + 1)) + (2 if beyond else 0)
    y = int(random.integers(0, screen[1] - height + 1)) + (3 if beyond else 0)
    bits = int(random.integers(1, 9))
    colours = random.integers(0, 256, 3 << bits, numpy.uint8).tobytes()
    local = random.random() < 0.5
    out = b"GIF89a" + struct.pack("<HHBBB", *screen, 0 if local else 0x80 | (bits - 1), 0, 0)
    out += b"" if local else colours
    if random.random() < 0.5:
        out += b"\x21\xfe\x05hello\0"
    if random.random() < 0.5:
        out += b"\x21\xf9\x04" + struct.pack("<BHB", 1, 0, int(random.integers(0, 1 << bits))) + b"\0"
    interlaced = random.random() < 0.5
    out += b"," + struct.pack("<HHHHB", x, y, width, height, (0x80 | (bits - 1) if local else 0) | (0x40 if interlaced else 0))
    out += colours if local else b""
    indices = random.integers(0, 1 << bits, width * height) // int(random.integers(1, 4))
    return out + lzw(indices.tolist(), max(bits, 2)) + b";"


def gifs(random):
    yield "gif-P", saved(image(random, "P"), "GIF")
    yield "gif-L", saved(image(random, "L"), "GIF", interlace=int(random.integers(0, 2)))
    yield "gif-transparent", saved(image(random, "P"), "GIF", transparency=0)
    first = image(random, "P")
    yield "gif-moving", saved(first, "GIF", save_all=True, append_images=[first.rotate(180)], loop=0)
    for number in range(4):
        yield f"gif-part{number}", gif(random)
    yield "gif-beyond", gif(random, beyond=True)


# ---- BMP ---------------------------------------------------------------------------------


def bmp(random, bits, masks=None, from_top=False, header_bytes=40):
    width, height = size(random)
    samples = random.integers(0, 256, (height, (width * bits + 31) // 32 * 4), numpy.uint8)
    fields = struct.pack("<HH", 1, bits)
    if header_bytes == 12:
        header = struct.pack("<IHH", 12, width, height) + fields
    else:
        header = struct.pack("<Iii", header_bytes, width, -height if from_top else height) + fields
        header += struct.pack("<IIiiII", 3 if masks else 0, 0, 2835, 2835, 0, 0)
        if masks:
            header += struct.pack("<III", *masks)
        header += bytes(max(0, header_bytes - len(header)))
    palette = random.integers(0, 256, ((1 << bits) * (3 if header_bytes == 12 else 4)), numpy.uint8).tobytes() if bits <= 8 else b""
    offset = 14 + len(header) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + samples.size, 0, 0, offset) + header + palette + samples.tobytes()


def bmps(random):
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        yield f"bmp-{mode}", saved(image(random, mode), "BMP")
    for bits in (1, 4, 8, 16, 24, 32):
        for from_top in (False, True):
            yield f"bmp-{bits}-{'top' if from_top else 'bottom'}", bmp(random, bits, from_top=from_top)
    yield "bmp-565", bmp(random, 16, (0xF800, 0x7E0, 0x1F))
    yield "bmp-555", bmp(random, 16, (0x7C00, 0x3E0, 0x1F), header_bytes=108)
    yield "bmp-rgbx", bmp(random, 32, (0xFF000000, 0xFF0000, 0xFF00), header_bytes=40)
    yield "bmp-argb", bmp(random, 32, (0xFF0000, 0xFF00, 0xFF), header_bytes=124)
    yield "bmp-core", bmp(random, 24, header_bytes=12)


def files(random):
    """Yields a name and a file's bytes for each form."""
    for form in (pngs, jpegs, webps, gifs, bmps):
        yield from form(random)
