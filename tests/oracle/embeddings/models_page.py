"""The table of docs/embedding_models.md: architectures of which compare.py checked models."""

HEAD = """# Embedding models and rerankers

`tests/oracle/embeddings/compare.py` makes this page. Vectors of random models have a cosine of at least 0.9999 with
llama.cpp's and with a computation in float64 (quantised types: on average at most 1.5 times llama.cpp's distance to float64).
Bits are equal alone and beside other inputs, on one thread and two, and in passes of any size.

| architecture | models | reads | pooling |
|---|---|---|---|
"""

MODELS = {
    "bert": ("BERT, MiniLM, BGE, E5, GTE, Arctic Embed, mxbai; XLM-RoBERTa: BGE-M3; their rerankers", "whole inputs"),
    "gemma-embedding": ("EmbeddingGemma", "whole inputs"),
    "jina-bert-v2": ("Jina Embeddings 2, for text and code; Jina Reranker 1", "whole inputs"),
    "jina-bert-v3": ("Jina Embeddings 3, without the adapters of tasks", "whole inputs"),
    "modern-bert": ("ModernBERT, GTE ModernBERT, Granite Embedding R2; their rerankers", "whole inputs"),
    "nomic-bert": ("Nomic Embed 1 and 1.5", "whole inputs"),
    "nomic-bert-moe": ("Nomic Embed 2", "whole inputs"),
    "qwen3": ("Qwen 3 Embedding, Qwen 3 Reranker", "token after token"),
}
FOOT = """
The pooling is the file's `pooling_type`: none, mean, cls, last or rank. Models that generate text, of every architecture
of [architectures.md](architectures.md) without an encoder, can be embedded too, with the pooling last.
"""


def text(architectures):
    rows = [f"| `{name}` | {models} | {reads} | as the file says |\n"
            for name, (models, reads) in sorted(MODELS.items()) if name in architectures]
    return HEAD + "".join(rows) + FOOT


def check(page, architectures, write):
    """Returns what the page has otherwise than these architectures, or writes it."""
    if architectures != set(MODELS):
        return []  # a part of the variants ran
    if write:
        page.write_text(text(architectures))
    same = page.exists() and page.read_text() == text(architectures)
    return [] if same else [f"{page.name} differs from what the checks show; run compare.py with --write"]
