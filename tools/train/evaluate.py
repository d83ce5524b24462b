#!/usr/bin/python3
"""Measures a model file on held-out stories, with its dequantised weights.

  tools/train/evaluate.py models/story.gguf
  tools/train/evaluate.py models/story.gguf --draft models/story-draft.gguf
  tools/train/evaluate.py models/story.gguf --write models/questions.jsonl

Every story is asked several questions, each right after the story as a user
would. An answer is right if greedy decoding gives all its tokens, including the
full stop. The distance of a question is the number of tokens from the
end of the last sentence that tells the fact to the question.
"""

import argparse
import collections
import dataclasses
import json

import cpu  # pylint: disable=unused-import  (before torch)

import torch

import export
import llama
import spm
import story

LENGTHS = (110, 230, 450, 850, 1250)   # of story and questions; questions take a third
SHARE = 0.25
BUCKETS = ((0, 100), (100, 200), (200, 400), (400, 800), (800, 1024))


@dataclasses.dataclass(frozen=True)
class Case:
  body: str
  question: str             # continues the body, ends with "Answer:"
  answer: str               # with a space in front, without the full stop
  distance: int
  kind: str
  form: int
  reserved: bool            # the combination was never in training


def cases_of(generator, tokenizer, length, max_count):
  """Questions about one held-out story."""
  spec = story.Spec(length=length, question_share=SHARE, held_out=True)
  drawn = generator.story(spec)
  sizes = [len(tokenizer.encode_part(" " + s)) for s in drawn.sentences]
  tail = len(tokenizer.encode_part(drawn.tail))
  cases = []
  for fact, form in drawn.asked[:max_count]:
    question, answer = fact.asked(form)
    cases.append(Case(
        drawn.body(), f"{drawn.gap}Question: {question} Answer:", " " + answer,
        sum(sizes[drawn.last_mention[fact] + 1:]) + tail, fact.kind, form,
        story.reserved(fact.kind, fact.subject, fact.values)))
  return cases


class Greedy:
  """Greedy decoding with cached keys and values."""

  def __init__(self, path):
    self.model = export.load_model(path)
    self.tokenizer = export.load_tokenizer(path)

  def read(self, text):
    past = llama.Past(self.model.config)
    self.model.hidden(torch.tensor([[spm.BOS] + self.tokenizer.encode(text)]), past)
    return past

  def answers(self, past, case):
    """Returns whether the model gives the answer. `past` holds the body and is not changed."""
    past = past.copy()
    ids = self.tokenizer.encode_part(case.question)
    for token in self.tokenizer.encode_part(case.answer + "."):
      logits = self._last(ids, past)
      if int(logits.argmax()) != token:
        return False
      ids = [token]
    return True

  def continue_text(self, text, max_tokens=300, temperature=0.0, seed=0):
    """Returns the text up to </s>, and whether </s> came."""
    torch.manual_seed(seed)
    past, ids, out = llama.Past(self.model.config), [spm.BOS], []
    ids += self.tokenizer.encode(text)
    for _ in range(max_tokens):
      logits = self._last(ids, past)
      if temperature > 0:
        token = int(torch.multinomial(torch.softmax(logits / temperature, -1), 1))
      else:
        token = int(logits.argmax())
      if token == spm.EOS:
        return text + self.tokenizer.decode(out), True
      ids = [token]
      out.append(token)
    return text + self.tokenizer.decode(out), False

  def _last(self, ids, past):
    hidden = self.model.hidden(torch.tensor([ids]), past)[0, -1]
    return self.model.token_embd.weight @ hidden


class Tally:
  """Counts right answers by a key."""

  def __init__(self):
    self._counts = collections.defaultdict(lambda: [0, 0])

  def add(self, key, right):
    self._counts[key][0] += right
    self._counts[key][1] += 1

  def lines(self):
    for key, (right, count) in sorted(self._counts.items()):
      yield f"{key}: {right}/{count} = {right / count:.2%}"


def bucket(distance):
  return next(f"{low:4}-{high}" for low, high in BUCKETS if low <= distance < high)


def ask(decoder, stories, per_story):
  generator = story.Generator("held out")
  tallies = collections.defaultdict(Tally)
  for i in range(stories):
    cases = cases_of(generator, decoder.tokenizer, LENGTHS[i % len(LENGTHS)], per_story)
    past = decoder.read(cases[0].body) if cases else None
    for case in cases:
      right = decoder.answers(past, case)
      tallies["all"].add("answers", right)
      tallies["distance"].add(bucket(case.distance), right)
      tallies["kind and form"].add(f"{case.kind} {case.form}", right)
      tallies["combination"].add("unseen" if case.reserved else "maybe seen", right)
  return tallies


def agreement(decoder, draft_path, stories):
  """Share of positions of held-out text where the draft's first choice is the
  model's, in the story itself and in the questions after it."""
  draft = export.load_model(draft_path)
  generator = story.Generator("agreement")
  tally = Tally()
  for i in range(stories):
    drawn = generator.story(story.Spec(
        length=(120, 250, 500, 1000)[i % 4], question_share=0.3 * (i // 4 % 2),
        held_out=True))
    ids = [spm.BOS] + decoder.tokenizer.encode(drawn.text())
    ids = torch.tensor([ids[:decoder.model.config.context]])
    same = decoder.model(ids).argmax(-1) == draft(ids).argmax(-1)
    start = len(decoder.tokenizer.encode(drawn.body()))
    for position, right in enumerate(same[0].tolist()):
      tally.add("questions" if position >= start else "story", right)
      tally.add("all", right)
  return tally


def write_cases(path, decoder, count):
  """Held-out prompts for tests, short stories more often than long ones."""
  generator = story.Generator("questions file")
  lengths = (110, 110, 110, 230, 230, 450, 450, 850, 1250)
  with open(path, "w", encoding="utf-8") as out:
    for i in range(count):
      case = None
      while case is None:
        found = cases_of(generator, decoder.tokenizer, lengths[i % len(lengths)], 1)
        case = found[0] if found else None
      out.write(json.dumps(dict(
          prompt=case.body + case.question, answer=case.answer.strip(), stop=".",
          distance_tokens=case.distance)) + "\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("model")
  parser.add_argument("--stories", type=int, default=500)
  parser.add_argument("--per_story", type=int, default=4)
  parser.add_argument("--draft", help="measure how often it agrees")
  parser.add_argument("--write", help="write held-out questions here instead")
  parser.add_argument("--count", type=int, default=200, help="questions to write")
  args = parser.parse_args()
  torch.set_num_threads(1)
  decoder = Greedy(args.model)
  if args.write:
    write_cases(args.write, decoder, args.count)
  elif args.draft:
    print("\n".join(agreement(decoder, args.draft, args.stories).lines()))
  else:
    for name, tally in ask(decoder, args.stories, args.per_story).items():
      print(f"{name}\n  " + "\n  ".join(tally.lines()))


if __name__ == "__main__":
  main()
