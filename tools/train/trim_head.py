#!/usr/bin/python3
"""Gives a draft head an output matrix of its own, over the tokens that the text has most often.

  tools/train/trim_head.py models/story.gguf models/story-head.gguf --tokens 384

The head's file then has rows of the model's output matrix, as the model has them, and
`d2t`, the model's token of each row. A draft pays for these rows alone, and the tokens
without a row are never drafted. A head that was trimmed before gets other rows.
"""

import argparse
import os

import numpy

import gguf_file as gguf
import mixes
import spm

TOKENS = "d2t"


def count_tokens(tokenizer, least):
  """Returns how often each token is in at least `least` tokens of the head's training text."""
  counts = numpy.zeros(len(tokenizer), numpy.int64)
  batch = 0
  while counts.sum() < least:
    ids, weights = mixes.batch_for_head(tokenizer, f"head tokens {batch}")
    numpy.add.at(counts, ids[:, 1:][weights > 0], 1)
    batch += 1
  return counts


def most_frequent(counts, tokens):
  """Returns the ids of the `tokens` largest counts, ascending; of equal counts the lower ids."""
  return numpy.sort(numpy.argsort(-counts, kind="stable")[:tokens])


def trim(model_path, head_path, tokens, out):
  """Writes the head with output rows for `tokens` of the model alone."""
  _, model = gguf.read_as_written(model_path)
  metadata, tensors = gguf.read_as_written(head_path)
  output = model.get("output.weight", model["token_embd.weight"])
  name = next(name for name in tensors if name.endswith("nextn.eh_proj.weight"))
  tensors[name.replace("eh_proj", "shared_head_head")] = output.rows(tokens)
  tensors[TOKENS] = gguf.integers(tokens)
  gguf.write(out + ".new", metadata, tensors)
  os.replace(out + ".new", out)


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("model", help="GGUF file of the model")
  parser.add_argument("head", help="GGUF file of its draft head")
  parser.add_argument("--tokens", type=int, required=True, help="rows of the output matrix")
  parser.add_argument("--counted", type=int, default=500_000, help="tokens of text to count")
  parser.add_argument("--out", help="GGUF file to write (default: the head's)")
  args = parser.parse_args()
  vocabulary = gguf.read_as_written(args.model)[0]["tokenizer.ggml.tokens"].value
  if not 1 <= args.tokens <= len(vocabulary):
    parser.error(f"--tokens is {args.tokens}; must be 1 to {len(vocabulary)}")
  tokenizer = spm.Tokenizer(vocabulary[spm.FIRST_PIECE:], [])
  counts = count_tokens(tokenizer, args.counted)
  chosen = most_frequent(counts, args.tokens)
  trim(args.model, args.head, chosen, args.out or args.head)
  share = counts[chosen].sum() / counts.sum()
  print(f"{args.tokens} tokens, {share:.4%} of the text; it has {(counts > 0).sum()}")


if __name__ == "__main__":
  main()
