// Writes the Unicode data of the tokenizers, as this Node knows them (process.versions.unicode; Node 24 has
// Unicode 17):
//
//   unicode_class_data.cc     the class of each code point
//   unicode_compose_data.cc   canonical decompositions and the order of combining marks
//   unicode_fold_data.cc      lower-case letters, and the marks that take no space
//
//   node tools/unicode_classes/generate.mjs src/tokenizer/unicode
import { writeFileSync } from "node:fs";

const CODE_POINTS = 0x110000;
const isSurrogate = (c) => c >= 0xd800 && c <= 0xdfff;
const VERSION = process.versions.unicode;

function head(what) {
  return `// Made by tools/unicode_classes/generate.mjs from Unicode ${VERSION}; not to be edited.
#include "tokenizer/unicode/${what}.h"

namespace kvcache {
namespace {

`;
}

function table(entries, perLine) {
  let text = "";
  for (let i = 0; i < entries.length; i += perLine) text += `  ${entries.slice(i, i + perLine).join(" ")}\n`;
  return text;
}

const hex = (c) => `0x${c.toString(16).toUpperCase()}`;

// ---- Classes

const CLASSES = [[/\p{White_Space}/u, "W"], [/\p{Lu}|\p{Lt}/u, "U"], [/\p{Ll}/u, "Q"], [/\p{L}/u, "L"], [/\p{N}/u, "N"],
  [/\p{M}/u, "M"], [/\p{P}/u, "P"], [/\p{S}/u, "S"]];

function classOf(c) {
  if (isSurrogate(c)) return "O";
  const text = String.fromCodePoint(c);
  const found = CLASSES.find(([pattern]) => pattern.test(text));
  return found ? found[1] : "O";
}

function classes() {
  const entries = [];
  let before = "";
  for (let c = 0; c < CODE_POINTS; ++c) {
    const kind = classOf(c);
    if (kind !== before) entries.push(`{${hex(c)}, ${kind}},`);
    before = kind;
  }
  return `${head("unicode_class")}constexpr UnicodeClass L = kLetter, U = kLetter | kUpperLetter, Q = kLetter | kLowerLetter,
                       N = kNumber, M = kMark, P = kPunctuation, S = kSymbol, W = kWhite,
                       O = kOther;

// clang-format off
constexpr UnicodeRange kRanges[] = {
${table(entries, 8)}};
// clang-format on

}  // namespace

std::span<const UnicodeRange> UnicodeRanges() {
  return kRanges;
}

}  // namespace kvcache
`;
}

// ---- Composition

// Returns whether canonical order puts `b` before `a`: the class of b is lower, and neither is 0.
function swaps(a, b) {
  const both = String.fromCodePoint(a, b);
  return both.normalize("NFD") === String.fromCodePoint(b, a) && a !== b;
}

// Returns the marks that are ordered, each with the number of its combining class: the classes in order, from 1. The
// numbers are not Unicode's, but their order is.
function orders() {
  const LOWEST = 0x334, HIGHEST = 0x345;
  const marks = [];
  for (let c = 0x300; c < CODE_POINTS; ++c) {
    if (isSurrogate(c) || !/\p{M}/u.test(String.fromCodePoint(c))) continue;
    if (String.fromCodePoint(c).normalize("NFD") !== String.fromCodePoint(c)) continue;
    if (swaps(c, LOWEST) || swaps(HIGHEST, c) || c === LOWEST || c === HIGHEST) marks.push(c);
  }
  const representatives = [];
  for (const mark of marks) {
    const at = representatives.findIndex((other) => !swaps(mark, other));
    if (at < 0) representatives.push(mark);
    else if (swaps(representatives[at], mark)) representatives.splice(at, 0, mark);
  }
  return marks.map((mark) => [mark, 1 + representatives.findIndex((other) => !swaps(mark, other))]);
}

// Returns the canonical decompositions, and the characters that have several parts but are never composed of them.
function decompositions() {
  const HANGUL = [0xac00, 0xd7a3];
  const decomposed = [], never = [];
  for (let c = 0xc0; c < CODE_POINTS; ++c) {
    if (isSurrogate(c) || (c >= HANGUL[0] && c <= HANGUL[1])) continue;
    const text = String.fromCodePoint(c);
    const parts = [...text.normalize("NFD")];
    if (parts.length === 1 && parts[0] === text) continue;
    decomposed.push([c, parts.map((part) => part.codePointAt(0))]);
    if (parts.length === 1) continue;
    if (text.normalize("NFC") !== text) never.push(c);
    else if ([...parts.slice(0, -1).join("").normalize("NFC")].length !== 1) throw new Error(`${hex(c)} has no last part`);
  }
  return { decomposed, never };
}

function compose() {
  const { decomposed, never } = decompositions();
  const ranges = [];  // marks of one class that follow each other
  for (const [mark, order] of orders()) {
    const last = ranges.at(-1);
    if (last && last[1] + 1 === mark && last[2] === order) last[1] = mark;
    else ranges.push([mark, mark, order]);
  }
  return `${head("unicode_compose")}// clang-format off
constexpr Decomposition kDecompositions[] = {
${table(decomposed.map(([c, parts]) => `{${hex(c)}, {${parts.map(hex).join(", ")}}},`), 6)}};

constexpr std::uint32_t kNeverComposed[] = {
${table(never.map((c) => `${hex(c)},`), 12)}};

constexpr MarkOrder kMarkOrders[] = {
${table(ranges.map(([first, last, order]) => `{${hex(first)}, ${hex(last)}, ${order}},`), 6)}};
// clang-format on

}  // namespace

std::span<const Decomposition> Decompositions() {
  return kDecompositions;
}
std::span<const std::uint32_t> NeverComposed() {
  return kNeverComposed;
}
std::span<const MarkOrder> MarkOrders() {
  return kMarkOrders;
}

}  // namespace kvcache
`;
}

// ---- Folding

// Returns runs of characters whose lower-case letters are as far away: [first, last, step, distance].
function lowerCase() {
  const runs = [];
  for (let c = 0; c < CODE_POINTS; ++c) {
    if (isSurrogate(c)) continue;
    const lower = [...String.fromCodePoint(c).toLowerCase()];
    if (lower.length !== 1 || lower[0].codePointAt(0) === c) continue;
    const distance = lower[0].codePointAt(0) - c;
    const run = runs.at(-1);
    const step = run ? c - run[1] : 0;
    if (run && run[3] === distance && step <= 2 && (run[0] === run[1] || run[2] === step)) [run[1], run[2]] = [c, step];
    else runs.push([c, c, 1, distance]);
  }
  return runs;
}

function nonspacingMarks() {
  const ranges = [];
  for (let c = 0; c < CODE_POINTS; ++c) {
    if (isSurrogate(c) || !/\p{Mn}/u.test(String.fromCodePoint(c))) continue;
    if (ranges.at(-1)?.[1] === c - 1) ranges.at(-1)[1] = c;
    else ranges.push([c, c]);
  }
  return ranges;
}

function fold() {
  return `${head("unicode_fold")}// clang-format off
constexpr LowerCaseRun kLowerCase[] = {
${table(lowerCase().map(([first, last, step, distance]) => `{${hex(first)}, ${hex(last)}, ${step}, ${distance}},`), 5)}};

constexpr MarkRange kNonspacingMarks[] = {
${table(nonspacingMarks().map(([first, last]) => `{${hex(first)}, ${hex(last)}},`), 6)}};
// clang-format on

}  // namespace

std::span<const LowerCaseRun> LowerCaseRuns() {
  return kLowerCase;
}
std::span<const MarkRange> NonspacingMarks() {
  return kNonspacingMarks;
}

}  // namespace kvcache
`;
}

const folder = process.argv[2];
writeFileSync(`${folder}/unicode_class_data.cc`, classes());
writeFileSync(`${folder}/unicode_compose_data.cc`, compose());
writeFileSync(`${folder}/unicode_fold_data.cc`, fold());
