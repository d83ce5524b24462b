"""Makes random-weight models of the shapes that checks of several programs share.

The shapes are small enough for float64 and chosen to reveal errors: grouped queries, head counts
that are not powers of two, head sizes other than 64, heads that together exceed the hidden size, an
odd vocabulary, tied and untied output.
"""

import dataclasses
import subprocess

import numpy as np

import random_blocks

PLAIN_TYPES = ["f32", "f16", "bf16", "q8_0"]
SMALL_TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "mxfp4"]
SUPER_TYPES = ["q4_k", "q5_k", "q6_k", "q4_k_m", "q5_k_m"]
CODED_TYPES = ["q2_k", "q3_k", "iq4_nl", "iq4_xs"]
# Types that are read and not written; random_blocks.py makes their blocks.
READ_TYPES = ["iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_s", "iq1_m", "tq1_0", "tq2_0",
              "nvfp4"]
TYPES = PLAIN_TYPES + SMALL_TYPES + SUPER_TYPES + CODED_TYPES + READ_TYPES


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied: bool


SHAPES = [
    Shape("grouped-64", 2, 256, 4, 2, 64, 512, 1024, tied=False),
    Shape("nine-of-three-64", 2, 288, 9, 3, 64, 480, 1501, tied=True),
    Shape("plain-80", 3, 320, 4, 4, 80, 640, 1200, tied=False),
    Shape("five-of-one-32", 2, 160, 5, 1, 32, 416, 1111, tied=True),
]

# Shapes whose rows are whole super-blocks of 256. In the last one the feed-forward part's rows are
# not, so these tensors fall back to other types.
WIDE_SHAPES = [
    Shape("wide-grouped-64", 2, 256, 4, 2, 64, 768, 1024, tied=False),
    Shape("wide-plain-128", 3, 512, 4, 4, 128, 512, 1200, tied=True),
    Shape("wide-six-of-two", 2, 768, 6, 2, 128, 1024, 1501, tied=False),
    Shape("wide-but-ffn", 4, 256, 8, 2, 32, 480, 1111, tied=True),
]
ALL_SHAPES = SHAPES + WIDE_SHAPES
CASES = ([(shape, name) for shape in SHAPES for name in PLAIN_TYPES]
         + [(shape, name) for shape in SHAPES[:3] for name in SMALL_TYPES]
         + [(shape, name) for shape in WIDE_SHAPES for name in SUPER_TYPES]
         + [(WIDE_SHAPES[i % 3], name) for i, name in enumerate(CODED_TYPES + READ_TYPES)])
WIDE_TYPES = SUPER_TYPES + CODED_TYPES + READ_TYPES


# llama.cpp applies the factors of NVFP4's matrices in some architectures only.
FACTORED = ("llama", "qwen3", "qwen3moe")


def types_of(shape, architecture):
    """Returns the types that models of a shape and an architecture may have."""
    if shape in WIDE_SHAPES:
        return [name for name in WIDE_TYPES if name != "nvfp4" or architecture in FACTORED]
    return PLAIN_TYPES + (SMALL_TYPES if shape != SHAPES[-1] else [])


@dataclasses.dataclass(frozen=True)
class Variant:
    """An architecture, and the settings of its files in addition to the shape."""
    name: str
    architecture: str
    flags: tuple = ()
    experts: tuple = ()  # numbers of experts: of a layer, of a token
    even_split: bool = False  # llama.cpp requires heads * head_dim == width
    alone: str = ""  # the reason why only float64 is compared, without llama.cpp
    eval_flags: tuple = ()  # flags of our `kvcache eval`
    rough_gelu: bool = False  # llama.cpp reads GELU from a table of f16
    layers: int = 0  # number of layers; 0: the shape's
    head_step: int = 1  # head sizes are multiples of it
    encoded: int = 0  # number of tokens that the encoder reads; the rest is the decoder's
    apart: bool = False  # runs only by name, because it takes long

    def fit(self, shape):
        """Returns the shape, or the nearest one that this architecture supports."""
        head_dim = -(-shape.head_dim // self.head_step) * self.head_step
        shape = dataclasses.replace(shape, layers=self.layers or shape.layers,
                                    head_dim=head_dim)
        if not self.even_split or shape.heads * shape.head_dim == shape.width:
            return shape
        head_dim = shape.width // shape.heads
        return dataclasses.replace(shape, name=shape.name.rsplit("-", 1)[0] + f"-{head_dim}",
                                   head_dim=head_dim)


# The original context is short, so that a few hundred positions cover every part of YaRN's ramp.
# The factors are those of published models.
_SCALED_ROPE = ("--rope-original-context", 128, "--rope-factor", 4)
# The latent vectors and the heads consist of whole blocks of 32.
_LATENT = ("--kv-rank", 96, "--rope-dims", 32, "--dense-layers", 1)
_GEMMA3_ROPE = ("--rope-scaling", "linear", "--rope-factor", 8, "--rope-base", 1000000)
# Short chunks, so that recurrent states pass through several passes and checkpoints.
_CHECKPOINTS = ("--prefill-chunk", 48, "--checkpoint-spacing", 64)
# A new one goes to the end: the place of a variant chooses which shapes and types are compared (tests/oracle/compare.py).
VARIANTS = [
    Variant("llama", "llama"),
    Variant("llama-linear", "llama", ("--rope-scaling", "linear", "--rope-factor", 2.5)),
    Variant("llama-llama3", "llama", ("--rope-scaling", "llama3", "--rope-base", 500000,
                                      "--rope-original-context", 512, "--rope-factor", 8)),
    Variant("llama-yarn", "llama", ("--rope-scaling", "yarn", *_SCALED_ROPE)),
    Variant("llama-experts", "llama", experts=(8, 4)),
    Variant("llama-window", "llama", ("--window", 100),
            alone="llama.cpp has no window in this architecture"),
    # More than 400 of 536 tokens are beyond the window. gemma3's sixth layer has no window.
    Variant("gemma2", "gemma2", ("--window", 100), rough_gelu=True),
    Variant("gemma2-27b", "gemma2", ("--window", 100), rough_gelu=True, layers=46, apart=True),
    Variant("gemma3", "gemma3", ("--window", 100, *_GEMMA3_ROPE), rough_gelu=True, layers=6),
    # Types of four bits have clear greedy steps only if few layers add up noise.
    Variant("gemma3-of-3", "gemma3", ("--window", 100, "--window-pattern", 3, *_GEMMA3_ROPE),
            rough_gelu=True, layers=3),
    Variant("llama4", "llama4", ("--rope-base", 500000), experts=(8, 2), layers=4),
    Variant("llama4-chunks", "llama4", ("--chunk", 96, "--temperature-length", 50,
                                        "--expert-step", 1), experts=(8, 1), layers=5,
            alone="llama.cpp's chunk and temperature are those of the published models"),
    Variant("deepseek2-v2", "deepseek2", (*_LATENT, "--q-rank", 128, "--shared-experts", 2,
                                          "--rope-scaling", "yarn", *_SCALED_ROPE),
            experts=(8, 3), head_step=32),
    Variant("deepseek2-lite", "deepseek2", _LATENT, experts=(8, 3), head_step=32),
    Variant("deepseek2-v3", "deepseek2", (*_LATENT, "--q-rank", 96, "--sigmoid-experts",
                                          "--expert-groups", 4, "--expert-groups-used", 2),
            experts=(16, 3), head_step=32),
    Variant("deepseek2-old", "deepseek2", (*_LATENT, "--q-rank", 64, "--whole-kv"),
            experts=(8, 3), head_step=32),
    Variant("deepseek2-groups", "deepseek2", (*_LATENT, "--expert-groups", 4,
                                              "--expert-groups-used", 2),
            experts=(16, 3), head_step=32,
            alone="llama.cpp takes a group for its two best experts, V2 for its best"),
    # The third and fourth layers share the keys and values of the first and second.
    Variant("gemma4", "gemma4", ("--window", 100, "--rope-base", 1000000), rough_gelu=True, layers=4),
    Variant("gemma4-experts", "gemma4", ("--window", 100, "--rope-base", 1000000), experts=(8, 2),
            rough_gelu=True),
    Variant("gpt-oss", "gpt-oss", ("--window", 100, "--rope-base", 150000, "--rope-scaling", "yarn",
                                   *_SCALED_ROPE), experts=(16, 4)),
    Variant("mistral3", "mistral3", ("--rope-scaling", "yarn", *_SCALED_ROPE)),
    Variant("qwen2", "qwen2", ("--rope-base", 1000000), even_split=True),
    Variant("qwen2-yarn", "qwen2", ("--rope-scaling", "yarn", *_SCALED_ROPE), even_split=True),
    Variant("qwen3", "qwen3", ("--rope-base", 1000000)),
    Variant("qwen3moe", "qwen3moe", ("--rope-base", 1000000), experts=(16, 4)),
    Variant("lfm2", "lfm2", ("--rope-base", 1000000), even_split=True, eval_flags=_CHECKPOINTS),
    Variant("lfm2moe", "lfm2moe", ("--rope-base", 1000000, "--dense-layers", 1), experts=(16, 4),
            even_split=True, eval_flags=_CHECKPOINTS),
    Variant("qwen3next", "qwen3next", ("--rope-base", 1000000), experts=(16, 4),
            eval_flags=_CHECKPOINTS),
    # As for gemma3-of-3: two layers leave enough greedy steps clear.
    Variant("qwen35", "qwen35", ("--rope-base", 1000000), eval_flags=_CHECKPOINTS, layers=2),
    Variant("qwen35moe", "qwen35moe", ("--rope-base", 1000000), experts=(16, 4),
            eval_flags=_CHECKPOINTS),
    Variant("lfm2-window", "lfm2", ("--rope-base", 1000000, "--window", 100), even_split=True,
            eval_flags=_CHECKPOINTS),
    Variant("falcon-h1", "falcon-h1", eval_flags=_CHECKPOINTS),
    Variant("mamba2", "mamba2", eval_flags=_CHECKPOINTS),
    # Layers are in turn a mixer, attention and a feed-forward part.
    Variant("nemotron_h", "nemotron_h", eval_flags=_CHECKPOINTS, layers=4),
    Variant("nemotron_h_moe", "nemotron_h_moe", experts=(16, 4), eval_flags=_CHECKPOINTS, layers=3),
    Variant("nemotron_h_moe-latent", "nemotron_h_moe", ("--latent", 64), experts=(16, 4),
            eval_flags=_CHECKPOINTS, layers=4),
    Variant("granitehybrid", "granitehybrid", eval_flags=_CHECKPOINTS),
    Variant("granitehybrid-experts", "granitehybrid", ("--turns",), experts=(8, 4),
            eval_flags=_CHECKPOINTS),
    Variant("apertus", "apertus", ("--rope-scaling", "llama3", "--rope-base", 500000,
                                   "--rope-original-context", 512, "--rope-factor", 8)),
    Variant("bailingmoe2", "bailingmoe2", ("--dense-layers", 1, "--expert-groups", 4,
                                           "--expert-groups-used", 2),
            experts=(16, 3), even_split=True),
    Variant("cohere2", "cohere2", ("--window", 100), layers=4, even_split=True),
    Variant("dots1", "dots1", ("--dense-layers", 1), experts=(16, 4)),
    Variant("ernie4_5", "ernie4_5", ("--rope-base", 500000)),
    Variant("ernie4_5-moe", "ernie4_5-moe", ("--dense-layers", 1), experts=(16, 4)),
    Variant("exaone4", "exaone4", ("--window", 100), layers=4, even_split=True),
    # A window needs 64 layers.
    Variant("exaone4-64", "exaone4", ("--window", 100), layers=64, apart=True, even_split=True),
    Variant("glm4", "glm4"),
    Variant("glm4moe", "glm4moe", ("--dense-layers", 1, "--nextn-layers", 1), experts=(16, 4)),
    Variant("granite", "granite"),
    Variant("granitemoe", "granitemoe", experts=(8, 4)),
    Variant("hunyuan-dense", "hunyuan-dense"),
    Variant("hunyuan-moe", "hunyuan-moe", experts=(8, 4)),
    Variant("minimax-m2", "minimax-m2", experts=(16, 4)),
    Variant("olmo2", "olmo2", even_split=True),
    Variant("olmo3", "olmo2", ("--window", 100, "--rope-scaling", "yarn", *_SCALED_ROPE), layers=4,
            even_split=True),
    Variant("phi3", "phi3", ("--rope-original-context", 128), even_split=True),
    Variant("phi3-window", "phi3", ("--window", 100), even_split=True,
            alone="llama.cpp has no window in this architecture"),
    Variant("seed_oss", "seed_oss"),
    Variant("smollm3", "smollm3", layers=4),
    # Both halves exceed T5's largest distance, 128, and a split of 256.
    Variant("t5", "t5", ("--decoder-layers", 3), encoded=270,
            alone="the bindings have no call for an encoder"),
    Variant("t5-relu", "t5", ("--ungated",), encoded=270,
            alone="the bindings have no call for an encoder"),
    # The last two of 22 layers share keys and values, and ten are sparse.
    Variant("gemma3n", "gemma3n", ("--window", 100, "--rope-base", 1000000), rough_gelu=True,
            layers=22),
    Variant("gemma3n-of-3", "gemma3n", ("--window", 100, "--window-pattern", 3, "--rope-base", 1000000),
            rough_gelu=True, layers=3),
    Variant("qwen2vl", "qwen2vl", ("--rope-base", 1000000), even_split=True),
]
LLAMA = VARIANTS[0]


class Failure(Exception):
    """A check or a program failed; the text says which."""


def run(command, **options):
    """Returns the program's standard output, or raises Failure with its standard error."""
    command = [str(part) for part in command]
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise Failure(f"`{' '.join(command)}` exited with status {result.returncode}:\n"
                      f"{result.stderr.strip()}")
    return result.stdout


def expert_flags(variant, shape):
    if not variant.experts:
        return []
    # Rows of experts are whole blocks of 32 or of 256, like those of the shape. In some families the
    # width of experts is that of the feed-forward part.
    ffn = 256 if shape.ffn % 256 == 0 and shape.width % 256 == 0 else 96
    if variant.architecture in ("llama", "granitehybrid"):
        ffn = shape.ffn
    count, used = variant.experts
    return ["--experts", count, "--experts-used", used, "--expert-ffn", ffn]


def make_model(tool, shape, weight_type, seed, path, variant=LLAMA):
    written = "f32" if weight_type in READ_TYPES else weight_type
    run([tool, "--arch", variant.architecture, "--type", written,
         "--layers", shape.layers, "--width", shape.width,
         "--heads", shape.heads, "--kv-heads", shape.kv_heads, "--head-dim", shape.head_dim,
         "--ffn", shape.ffn, "--vocab", shape.vocab, "--tied" if shape.tied else "--untied",
         "--seed", seed, *variant.flags, *expert_flags(variant, shape), path])
    if weight_type in READ_TYPES:
        random_blocks.convert(path, weight_type, seed)


def random_tokens(shape, count, seed):
    return np.random.default_rng(seed).integers(0, shape.vocab, count).tolist()
