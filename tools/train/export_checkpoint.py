#!/usr/bin/python3
"""Writes the GGUF file of an unfinished run: CHECKPOINT OUT [SIZE]."""

import sys

import torch

import bpe
import export
import llama
import train


def main():
  checkpoint, out, size = (sys.argv[1:] + ["main"])[:3]
  model = llama.Llama(train.SIZES[size])
  model.load_state_dict(torch.load(checkpoint, map_location="cpu")["model"])
  export.write_model(out, model, bpe.learn(), f"kvcache story {size}")


if __name__ == "__main__":
  main()
