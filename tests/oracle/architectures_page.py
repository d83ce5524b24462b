"""The rows of docs/architectures.md, one for each architecture, and what makes them.

compare.py asks for the row of each architecture that it measured. The rows must be those of the page; with --write
it writes them. A column says yes only if a check stands behind it:

    float64, llama.cpp   all bounds of compare.py hold for the architecture's models
    chunks … drafts      tests/exactness runs a model of the architecture (its tables name it with --arch)
"""

import re

HEAD = """# Architectures

`tests/oracle/compare.py` makes this page and checks its rows. [logits.md](logits.md) has the figures.

| column | |
|---|---|
| models | families of models whose files have the architecture's name in `general.architecture` |
| caches | kinds of cache of the layers; `sliding` and `chunked` where the file states a window or a chunk |
| float64 | logits of random models of f32 weights are within 1e-8 nats (KL) of a computation in float64, and those of other types within the bounds of `compare.py` |
| llama.cpp | the same weights give llama.cpp's logits within these bounds, and its greedy tokens wherever its own noise leaves them clear |
| chunks, threads | all bits are equal in chunks of 1, 7, 64 and 512 tokens, on 1 and 2 threads |
| company | they are equal in a batch with other sequences |
| forks | they are equal after a shared prefix |
| restores | they are equal after snapshots, exports and imports |
| drafts | they are equal for trees of drafts and after accepted paths |

| architecture | models | caches | float64 | llama.cpp | chunks, threads | company | forks | restores | drafts |
|---|---|---|---|---|---|---|---|---|---|
"""

MODELS = {
    "apertus": "Apertus",
    "bailingmoe2": "Ling 2, Ring 2",
    "cohere2": "Command R7B, Command A",
    "deepseek2": "DeepSeek V2, V3, R1; Kimi K2; GLM 4.7 Flash",
    "dots1": "dots.llm1",
    "ernie4_5": "ERNIE 4.5 0.3B",
    "ernie4_5-moe": "ERNIE 4.5 21B, 300B",
    "exaone4": "EXAONE 4.0",
    "falcon-h1": "Falcon H1",
    "gemma2": "Gemma 2",
    "gemma3": "Gemma 3",
    "gemma3n": "Gemma 3n",
    "gemma4": "Gemma 4",
    "glm4": "GLM 4 0414",
    "glm4moe": "GLM 4.5, 4.6, 4.7",
    "gpt-oss": "gpt-oss 20B, 120B",
    "granite": "Granite 3; Granite 4.0 dense",
    "granitehybrid": "Granite 4.0 H",
    "granitemoe": "Granite 3 MoE",
    "hunyuan-dense": "Hunyuan 0.5B to 7B",
    "hunyuan-moe": "Hunyuan A13B",
    "lfm2": "LFM 2",
    "lfm2moe": "LFM 2 8B-A1B",
    "llama": "Llama 1 to 3, Mistral, Mixtral, TinyLlama, SmolLM",
    "llama4": "Llama 4",
    "mamba2": "Mamba 2, Codestral Mamba",
    "minimax-m2": "MiniMax M2",
    "mistral3": "Mistral Small 3, Ministral 3",
    "nemotron_h": "Nemotron H, Nemotron Nano 2",
    "nemotron_h_moe": "Nemotron 3 Nano",
    "olmo2": "OLMo 2, OLMo 3",
    "phi3": "Phi 3, Phi 3.5, Phi 4",
    "qwen2": "Qwen 1.5, Qwen 2, Qwen 2.5",
    "qwen2vl": "Qwen 2 VL, Qwen 2.5 VL",
    "qwen3": "Qwen 3",
    "qwen35": "Qwen 3.5",
    "qwen35moe": "Qwen 3.5 with experts",
    "qwen3moe": "Qwen 3 with experts",
    "qwen3next": "Qwen 3 Next",
    "seed_oss": "Seed-OSS",
    "smollm3": "SmolLM 3",
    "t5": "T5, Flan-T5",
}
# Files of tests/exactness whose tests cover chunks, company, forks and restores; the first covers drafts too.
ALL, ENCODERS = "reference_run.cc", "encoder_test.cc"
EXACT_COLUMNS = 5


def exact_cells(folder, architecture):
    def names(file):
        return re.findall(r"--arch ([a-z0-9_-]+)", (folder / file).read_text())

    if architecture in names(ALL) or architecture == "llama":  # tables without --arch are llama's
        return ["yes"] * EXACT_COLUMNS
    if architecture in names(ENCODERS):
        return ["yes"] * (EXACT_COLUMNS - 1) + ["none"]
    return ["none"] * EXACT_COLUMNS


def line(architecture, rows, failed, exactness):
    """Returns the page's line from the rows of the architecture's models, and whether any bound failed."""
    kinds = sorted({kind for row in rows for kind in row["caches"]})
    known = any(not row["alone"] for row in rows)
    verdict = "no" if failed else "yes"
    cells = [f"`{architecture}`", MODELS.get(architecture, ""), ", ".join(kinds), verdict,
             verdict if known else "not known there", *exact_cells(exactness, architecture)]
    return f"| {' | '.join(cells)} |"


def lines_of(page):
    """Returns the page's lines by architecture."""
    text = page.read_text() if page.exists() else ""
    return {match[1]: match[0] for match in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.M)}


def differing(page, lines):
    """Returns a sentence for each line that the page does not have."""
    old = lines_of(page)
    return [f"{page.name} does not have {new}; it has {old.get(name, 'no such line')}"
            for name, new in lines.items() if old.get(name) != new]


def write(page, lines):
    merged = {**lines_of(page), **lines}
    page.write_text(HEAD + "".join(merged[name] + "\n" for name in sorted(merged)))
