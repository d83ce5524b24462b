#!/usr/bin/python3
"""Writes the GGUF file of an unfinished run: CHECKPOINT OUT [SIZE]."""

import sys

import torch

import export
import llama
import spm
import train


def main():
  checkpoint, out, size = (sys.argv[1:] + ["main"])[:3]
  saved = torch.load(checkpoint, map_location="cpu")
  model = llama.Llama(train.SIZES[size])
  model.load_state_dict(saved["model"])
  tokenizer = spm.Tokenizer(saved["vocabulary"][spm.FIRST_PIECE:], [])
  export.write_model(out, model, tokenizer, f"kvcache story {size}")


if __name__ == "__main__":
  main()
