"""Checks of the story generator: stories are consistent, and their facts can be asked."""

import collections
import re
import unittest

import story
import words


def _stories(count, **spec):
  generator = story.Generator("test")
  return [generator.story(story.Spec(**spec)) for _ in range(count)]


class StoryTest(unittest.TestCase):

  def test_the_seed_decides(self):
    spec = story.Spec(length=300, question_share=0.4)
    first, again, other = (story.Generator(s).story(spec).text() for s in (7, 7, 8))
    self.assertEqual(first, again)
    self.assertNotEqual(first, other)

  def test_each_fact_is_stated_once(self):
    for drawn in _stories(200, length=500, question_share=0.3):
      for fact in drawn.facts:
        self.assertEqual(drawn.sentences.count(fact.statement()), 1)

  def test_no_subject_has_two_facts_of_a_kind(self):
    for drawn in _stories(200, length=900, question_share=0.3):
      seen = collections.Counter((f.kind, f.subject) for f in drawn.facts)
      self.assertEqual(set(seen.values()) - {1}, set())

  def test_who_questions_have_one_answer(self):
    for drawn in _stories(200, length=900, question_share=0.3):
      seen = collections.Counter(
          (f.kind, f.values[-1]) for f in drawn.facts if f.kind != "item")
      self.assertEqual(set(seen.values()) - {1}, set())

  def test_questions_ask_only_what_was_told(self):
    for drawn in _stories(200, length=400, question_share=0.4):
      self.assertTrue({f for f, _ in drawn.asked} <= set(drawn.facts))

  def test_last_mention_names_the_values(self):
    for drawn in _stories(200, length=400, question_share=0.4, mention_rate=0.5):
      for fact, at in drawn.last_mention.items():
        for value in fact.values:
          self.assertIn(value, drawn.sentences[at])

  def test_parts_join_to_the_text(self):
    for drawn in _stories(200, length=250, question_share=0.4):
      self.assertEqual("".join(t for t, _ in drawn.parts()), " " + drawn.text())

  def test_weighted_parts_are_answers_not_in_the_question(self):
    for drawn in _stories(200, length=250, question_share=0.4):
      question = ""
      for text, is_value in drawn.parts():
        question = text if "Question:" in text else question
        if is_value:
          self.assertIsNone(re.search(rf"\b{text.strip()}\b", question))

  def test_length_is_kept(self):
    for drawn in _stories(200, length=256, question_share=0.4):
      self.assertLessEqual(story.count_tokens(drawn.text()), 256 + 12)


class TaleTest(unittest.TestCase):

  def test_a_tale_tells_nothing_twice_and_ends(self):
    for drawn in _stories(200, length=256, question_share=0, tale=True):
      self.assertEqual(len(set(drawn.sentences)), len(drawn.sentences))
      self.assertTrue(drawn.text().endswith("The end."))
      self.assertLess(story.count_tokens(drawn.text()), 256)

  def test_nobody_meets_himself(self):
    for drawn in _stories(200, length=256, question_share=0, tale=True):
      self.assertIsNone(re.search(r"\b([A-Z]\w+) (helped|asked|and) \1\b", drawn.text()))


class HeldOutTest(unittest.TestCase):

  def test_training_never_states_a_reserved_combination(self):
    for drawn in _stories(300, length=500, question_share=0.3):
      for fact in drawn.facts:
        self.assertFalse(story.reserved(fact.kind, fact.subject, fact.values))

  def test_held_out_stories_do(self):
    drawn = _stories(100, length=500, question_share=0.3, held_out=True)
    kinds = [story.reserved(f.kind, f.subject, f.values)
             for one in drawn for f in one.facts]
    self.assertGreater(sum(kinds), 0.4 * len(kinds))
    self.assertLess(sum(kinds), 0.7 * len(kinds))


class WordsTest(unittest.TestCase):

  def test_no_word_is_in_two_lists(self):
    lists = (words.NAMES, words.COLORS, words.THINGS, words.FOODS, words.HOMES,
             words.ITEMS, words.ANIMALS, words.JOBS)
    count = collections.Counter(word for entries in lists for word in entries)
    self.assertEqual([w for w, n in count.items() if n > 1], [])

  def test_a_fits_before_the_word(self):
    for word in (*words.COLORS, *words.JOBS):
      self.assertNotIn(word[0], "aeiou")


if __name__ == "__main__":
  unittest.main()
