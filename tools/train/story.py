"""Seeded generator of short children's stories with questions.

A story is a list of sentences: an opening, facts, scenes without facts,
sentences that refer back to a fact, and an ending. Questions about the facts
may follow, one per line, each with an answer that repeats the fact:

    Question: What did Mia have? Answer: Mia had a red ball.

Each fact is drawn uniformly and stated once, so nothing but the story decides
the answer; other people have facts of the same form.

Held-out combinations: of all pairs (subject, value) about one in eight is
reserved by a hash. Training stories never state a reserved pair; held-out
stories take theirs from the reserved pairs half of the time.
"""

import dataclasses
import random
import re
import zlib

import scenes
import words

_WORD = re.compile(r"[A-Za-z]+|'s|\S|\n")


def count_tokens(text):
  """Tokens of generated text: each word and each mark is one."""
  return len(_WORD.findall(text))


@dataclasses.dataclass(frozen=True)
class Fact:
  """A fact of a story; `values` are the words that decide an answer."""
  kind: str
  subject: str
  values: tuple

  def _fill(self, form):
    return form.format(*self.values, S=self.subject)

  def words(self):
    return {self.subject}.union(*(value.split() for value in self.values))

  def statement(self):
    return self._fill(_FORMS[self.kind].statement)

  def asked(self, form=0):
    """(question, answer without its full stop) in one of the kind's forms."""
    question, answer = _FORMS[self.kind].questions[form]
    return self._fill(question), self._fill(answer)

  def mention(self, rng, people):
    form = rng.choice(_FORMS[self.kind].mentions)
    return form.format(*self.values, S=self.subject, P=rng.choice(people))


@dataclasses.dataclass(frozen=True)
class _Form:
  """The sentences for facts of one kind; the first question form is the usual one."""
  statement: str
  questions: tuple
  mentions: tuple
  values: tuple   # one list of words per slot


_FORMS = {
    "has": _Form(
        "{S} had a {0} {1}.",
        (("What did {S} have?", "{S} had a {0} {1}"),
         ("What colour was {S}'s {1}?", "{S}'s {1} was {0}"),
         ("Who had the {0} {1}?", "{S} had the {0} {1}")),
        ("{S} showed everybody the {0} {1}.", "{S} took out the {0} {1}."),
        (words.COLORS, words.THINGS)),
    "likes": _Form(
        "{S} liked {0}.",
        (("What did {S} like?", "{S} liked {0}"),
         ("Who liked {0}?", "{S} liked {0}")),
        ("{S} ate some {0}.", "{S} asked for some {0}."),
        (words.FOODS,)),
    "home": _Form(
        "{S} lived near the {0}.",
        (("Where did {S} live?", "{S} lived near the {0}"),
         ("Who lived near the {0}?", "{S} lived near the {0}")),
        ("{S} walked home to the {0}.",),
        (words.HOMES,)),
    "saw": _Form(
        "{S} saw a {0} {1}.",
        (("What did {S} see?", "{S} saw a {0} {1}"),
         ("Who saw the {0} {1}?", "{S} saw the {0} {1}")),
        ("{S} told everybody about the {0} {1}.",),
        (words.COLORS, words.ANIMALS)),
    "met": _Form(
        "{S} met a {0}.",
        (("Who was it that {S} met?", "{S} met a {0}"),
         ("Who met the {0}?", "{S} met the {0}")),
        ("{S} told everybody about the {0}.", "{S} asked the {0} for help."),
        (words.JOBS,)),
    "item": _Form(
        "The {S} was {0}.",
        (("Where was the {S}?", "The {S} was {0}"),),
        ("{P} found the {S} {0}.",),
        (words.SPOTS,)),
}


def reserved(kind, subject, values):
  """Returns whether this combination is reserved for held-out stories."""
  key = " ".join((kind, subject) + tuple(values))
  return zlib.crc32(key.encode()) % 8 == 0


@dataclasses.dataclass
class Story:
  sentences: list          # text of each sentence, in order
  facts: list              # facts stated
  last_mention: dict       # fact -> index of the last sentence that tells it
  asked: list              # (fact, form) in the order of the questions
  tail: str                # after the last sentence: "" or " The end."
  gap: str = "\n"          # before each question

  def body(self):
    return " ".join(self.sentences) + self.tail

  def text(self):
    questions = [question_text(fact, form) for fact, form in self.asked]
    return self.gap.join([self.body()] + questions)

  def parts(self):
    """The text with a space in front, as (piece of text, is it an answer's
    value). No token crosses the borders."""
    yield " " + self.body(), False
    for fact, form in self.asked:
      question, answer = fact.asked(form)
      yield f"{self.gap}Question: {question} Answer:", False
      known = set(question.rstrip("?").split()) | {"the"}
      values = fact.words() - known
      for word in answer.split():
        yield " " + word, word in values
      yield ".", False


@dataclasses.dataclass(frozen=True)
class Spec:
  """What to generate. Lengths are in tokens."""
  length: int              # of the whole text
  question_share: float    # of the length that questions take; 0: none
  mention_rate: float = 0.15
  other_forms: float = 0.0  # share of questions in another than the usual form
  people: tuple = (2, 8)   # at least, at most; long stories have more
  kinds: int = 6           # of facts in one story; fewer: harder to tell apart
  tale: bool = False       # a story in the usual order, without questions
  held_out: bool = False


class Generator:
  """Draws stories; the same seed gives the same stories."""

  def __init__(self, seed):
    self._rng = random.Random(seed)

  def story(self, spec):
    rng = self._rng
    if spec.tale:
      return self._tale(spec)
    with_questions = spec.question_share > 0
    people = rng.sample(words.NAMES, self._people(spec))
    facts = self._facts(spec, people)
    opening = self._opening(with_questions).format(ALL=_join(people))
    with_ending = not with_questions or rng.random() < 0.2
    budget = int(spec.length * (1 - spec.question_share)) - 12 * with_ending
    middle = self._middle(spec, people, facts, budget - count_tokens(opening))
    story = Story([opening] if opening else [], [], {}, [], "")
    for text, fact in middle:
      if fact is not None:
        if fact not in story.last_mention:
          story.facts.append(fact)
        story.last_mention[fact] = len(story.sentences)
      story.sentences.append(text)
    if with_ending:
      story.sentences.append(rng.choice(scenes.ENDINGS))
      story.tail = " " + scenes.THE_END
    if with_questions:
      story.gap = rng.choice("\n\n ")
      story.asked = self._questions(spec, story)
    return story

  def retold(self, length, kinds):
    """Returns parts (see Story.parts) of a row of bare facts and a few scenes,
    repeated in other orders up to `length` tokens: the simplest text in which
    subject and verb distinguish facts."""
    rng = self._rng
    people = rng.sample(words.NAMES, rng.randint(3, 4 + length // 128))
    scene_rate = rng.uniform(0, min(0.6, length / 1500))
    facts = self._facts(Spec(length=length, question_share=0, kinds=kinds), people)
    facts = facts[:rng.randint(2 + length // 50, 2 + length // 18)]
    known, used = False, 0
    while used < length:
      for fact in rng.sample(facts, len(facts)):
        if not known and rng.random() < scene_rate:
          first, second = rng.sample(people, 2)
          yield " " + rng.choice(scenes.SCENES).format(A=first, B=second), False
        values = fact.words() - {fact.subject, "the"}
        for word in fact.statement().rstrip(".").split():
          yield " " + word, known and word in values
        yield ".", False
        used += count_tokens(fact.statement())
      known = True

  def _opening(self, with_questions):
    """Stories that start like a tale seldom end in questions, so that a tale
    generated from "Once upon a time" reaches its end."""
    rng = self._rng
    kind = rng.choices((scenes.TALES, scenes.DAYS, ("",)),
                       (0.1, 0.7, 0.2) if with_questions else (0.7, 0.3, 0))[0]
    return rng.choice(kind)

  def _tale(self, spec):
    """A story in a regular order: everybody is introduced with one fact, then one
    event leads to the next, until the day ends. Greedy decoding therefore
    generates a good one."""
    rng = self._rng
    first, count = rng.randrange(len(words.NAMES)), rng.randint(2, 4)
    people = [words.NAMES[(first + i) % len(words.NAMES)] for i in range(count)]
    opening = rng.choice(rng.choice((scenes.TALES, scenes.TALES, scenes.DAYS)))
    story = Story([opening.format(ALL=_join(people))], [], {}, [], "")
    for kind, name in zip(("has", "likes", "saw", "home"), people):
      story.facts.append(self._draw(spec, kind, name))
      story.last_mention[story.facts[-1]] = len(story.sentences)
      story.sentences.append(story.facts[-1].statement())
    chapter = scenes.CHAPTERS[first % len(scenes.CHAPTERS)]
    for i, scene in enumerate(chapter[rng.randint(0, 2):]):
      others = people[i % count], people[(i + 1) % count]
      story.sentences.append(scene.format(A=others[0], B=others[1]))
      if i % 2 == 1 and i // 2 < count and rng.random() < 0.7:
        fact = story.facts[i // 2]
        story.last_mention[fact] = len(story.sentences)
        story.sentences.append(fact.mention(rng, people))
    story.sentences.append(rng.choice(scenes.ENDINGS))
    story.tail = " " + scenes.THE_END
    return story

  def _people(self, spec):
    least, most = spec.people
    return self._rng.randint(least, max(least, min(most, 2 + spec.length // 90)))

  def _facts(self, spec, people):
    """Returns all facts that the story may tell, in that order."""
    rng = self._rng
    kinds = rng.sample(tuple(_FORMS), spec.kinds)
    subjects = []
    for kind in kinds:
      who = rng.sample(words.ITEMS, 6) if kind == "item" else people
      subjects += [(kind, subject) for subject in who]
    rng.shuffle(subjects)
    used = set()
    facts = []
    for kind, subject in subjects:
      fact = self._draw(spec, kind, subject)
      # One person per value, so that "Who ..." has one answer.
      if kind != "item" and (kind, fact.values[-1]) in used:
        continue
      used.add((kind, fact.values[-1]))
      facts.append(fact)
    return facts

  def _draw(self, spec, kind, subject):
    """A fact about the subject; held-out stories take a reserved one half of
    the time, if there is one."""
    rng = self._rng
    want_reserved = spec.held_out and rng.random() < 0.5
    for _ in range(40):
      values = tuple(rng.choice(slot) for slot in _FORMS[kind].values)
      is_reserved = reserved(kind, subject, values)
      if is_reserved == want_reserved or (spec.held_out and not want_reserved):
        break
    return Fact(kind, subject, values)

  def _middle(self, spec, people, facts, budget):
    """Facts, mentions and scenes, mixed, until the budget is used."""
    rng = self._rng
    max_facts = spec.length // 24 + 1
    if spec.question_share > 0:   # as many as can be asked, and a few more
      max_facts = int(spec.length * spec.question_share / 14) + rng.randint(1, 4)
    out = self._row(people, facts[:max_facts], budget)
    told = [fact for _, fact in out if fact is not None]
    if spec.mention_rate <= 0:
      return out
    for fact in told:
      if rng.random() < spec.mention_rate:
        said = next(i for i, entry in enumerate(out) if entry[1] == fact)
        text = fact.mention(rng, people)
        out.insert(rng.randint(said + 1, len(out)), (text, fact))
    return out

  def _row(self, people, facts, budget):
    rng = self._rng
    row = [(fact.statement(), fact) for fact in facts]
    lengths = [count_tokens(text) for text, _ in row]
    while row and sum(lengths) > budget:
      row.pop()
      lengths.pop()
    room = budget - sum(lengths)
    deck = []
    while True:
      deck = deck or rng.sample(scenes.SCENES, len(scenes.SCENES))
      first, second = rng.sample(people, 2)
      scene = deck.pop().format(A=first, B=second)
      room -= count_tokens(scene)
      if room < 0:
        return row
      row.insert(rng.randint(0, len(row)), (scene, None))

  def _questions(self, spec, story):
    rng = self._rng
    room = spec.length - count_tokens(story.body()) - 2
    asked = []
    for fact in rng.sample(story.facts, len(story.facts)):
      form = 0
      forms = len(_FORMS[fact.kind].questions)
      if forms > 1 and rng.random() < spec.other_forms:
        form = rng.randrange(1, forms)
      room -= count_tokens(question_text(fact, form)) + 1
      if room < 0:
        break
      asked.append((fact, form))
    return asked


def question_text(fact, form):
  question, answer = fact.asked(form)
  return f"Question: {question} Answer: {answer}."


def _join(people):
  if len(people) == 1:
    return people[0]
  return ", ".join(people[:-1]) + " and " + people[-1]
