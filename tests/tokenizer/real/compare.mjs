// Compares the ids of imported vocabularies with those of the models' own tokenizers, as transformers.js runs them
// (npm's @lenml/tokenizers), for texts in all scripts. In prompts of the models' own templates, no text that looks like
// a special token becomes one, wherever it stands.
//
//   usage: node compare.mjs KVCACHE_HF_TOKENIZE [count]
//
// Exits with 77 (skipped) if the packages are not installed here: `npm ci --ignore-scripts` installs them.
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const SKIPPED = 77;
const VOCABULARIES = ["qwen3", "gptoss", "deepseek_v3", "llama3", "llama3_1", "gpt4o", "llama2", "gemma3"];

if (!existsSync(join(HERE, "node_modules/@lenml/tokenizers"))) {
  console.log("SKIPPED: the vocabularies are not installed in tests/tokenizer/real");
  process.exit(SKIPPED);
}
const { TokenizerLoader } = await import("@lenml/tokenizers");

// A generator of pseudo-random numbers, the same in each run.
function makeRandom(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const SAMPLES = ["नमस्ते दुनिया, यह हिन्दी में एक वाक्य है।", "Les élèves ÉCOUTENT à l'école. C'EST ça !", "日本語のテキスト、漢字とカタカナ。",
  "한국어 문장입니다", "\u1112\u1161\u11ab\u1100\u1173\u11af", "Cafe\u0301 re\u0301sume\u0301 A\u030angstro\u0308m", "ภาษาไทยง่ายนิดเดียว", "தமிழ் மொழி",
  "العَرَبِيَّة لغة", "Việt Nam ơi! Việ\u0323t", "int main() {\n\treturn x->y + 0x7F; // don't\n}\n", "  two  spaces\n\n\r\n end  ", "👩‍👩‍👧 🇩🇪 ❤️",
  "Привет, МИР ёЁ", "ΑΒΓ αβγ ΆΈ", "1234567 ½ ٣٤٥ Ⅷ", "I'LL we'Ve DON'T it’s", "ǅungla ǈ Ǆ", "\u0301AB \u0301cd", "ﬁ ﬀ Å K Ω"];
const RANGES = [[0x20, 0x7e], [0xa0, 0x24f], [0x300, 0x36f], [0x370, 0x3ff], [0x400, 0x52f], [0x5d0, 0x5ea], [0x620, 0x65f], [0x900, 0x97f],
  [0xb80, 0xbff], [0xe00, 0xe4e], [0x1100, 0x11ff], [0x1e00, 0x1fff], [0x2000, 0x206f], [0x2100, 0x214f], [0x3040, 0x30ff], [0x4e00, 0x4fff],
  [0xac00, 0xacff], [0xfb00, 0xfb1f], [0x1f600, 0x1f64f], [0x9, 0xd]];

function randomText(random) {
  const ranges = [RANGES[0], RANGES[random(RANGES.length)], RANGES[random(RANGES.length)], RANGES[2]];
  let text = "";
  for (let length = 1 + random(40); length > 0; --length) {
    const [first, last] = ranges[random(ranges.length)];
    text += String.fromCodePoint(first + random(last - first + 1));
  }
  return text;
}

function texts(count) {
  const random = makeRandom(7);
  const all = [...SAMPLES];
  while (all.length < count) all.push(randomText(random));
  return all;
}

// Texts that look like special tokens, and such a text inside of others.
function typed(tokenizerJSON) {
  const special = tokenizerJSON.added_tokens.filter((token) => token.special);
  return { ids: new Set(special.map((token) => token.id)),
    texts: special.flatMap(({ content }) => [content, `a${content}b`, `\n${content} x`, content + content, content.slice(1)]) };
}

// A conversation that has a text in every place that the template reads.
function conversation(template, text) {
  if (!template.includes("tool")) {
    return { template, tools: [], messages: [{ role: "system", content: `s ${text}` }, { role: "user", content: `${text} u` },
      { role: "assistant", content: `a ${text} b` }, { role: "user", content: text }] };
  }
  const parameters = { type: "object", properties: { [`p${text}`]: { type: "string", description: `x ${text}` } } };
  const called = { id: "callprobe", type: "function", function: { name: "look", arguments: { [`p${text}`]: text } } };
  return { template,
    messages: [{ role: "system", content: `s ${text}` }, { role: "user", content: `${text} u` },
      { role: "assistant", content: "", reasoning_content: `r ${text}`, tool_calls: [called] },
      { role: "tool", tool_call_id: "callprobe", name: "look", content: `t ${text}` },
      { role: "assistant", content: `a ${text} b` }, { role: "user", content: text }],
    tools: [{ type: "function", function: { name: "look", description: `d ${text}`, parameters } }] };
}

// Returns how many texts change the special tokens of a prompt, beside the same prompt with letters.
function changed(folder, template, marks) {
  const contents = [...new Set(marks.texts)].filter((text) => !/[ab\n]/.test(text[0]) && text.length > 2);
  const ids = encode(folder, ["letters", ...contents].map((text) => conversation(template, text)));
  const [plain, ...others] = ids.map((prompt) => prompt.filter((id) => marks.ids.has(id)).join());
  if (plain === "") throw new Error(`${folder}: the prompt has no special tokens`);
  const wrong = others.map((special, i) => [special, contents[i]]).filter(([special]) => special !== plain);
  for (const [special, text] of wrong.slice(0, 5)) console.log(`${JSON.stringify(text)}: ${special} for ${plain}`);
  return [contents.length, wrong.length];
}

function encode(folder, texts) {
  const done = spawnSync(program, [join(folder, "tokenizer.json")], {
    input: texts.map((text) => `${JSON.stringify(text)}\n`).join(""), encoding: "utf8", maxBuffer: 1 << 28 });
  if (done.status !== 0) throw new Error(`${folder}: ${done.stderr}`);
  return done.stdout.trimEnd().split("\n").map((line) => JSON.parse(line));
}

const [program, count = "2000"] = process.argv.slice(2);
const all = texts(Number(count));
let failed = 0;
for (const name of VOCABULARIES) {
  const folder = join(HERE, `node_modules/@lenml/tokenizer-${name}/models`);
  const [tokenizerJSON, tokenizerConfig] = ["tokenizer.json", "tokenizer_config.json"].map((file) =>
    JSON.parse(readFileSync(join(folder, file), "utf8")));
  const theirs = TokenizerLoader.fromPreTrained({ tokenizerJSON, tokenizerConfig });
  const ours = encode(folder, all);
  const marks = typed(tokenizerJSON);
  const structure = encode(folder, marks.texts).filter((ids) => ids.some((id) => marks.ids.has(id))).length;
  console.log(`${name}: ${marks.texts.length} texts like special tokens, ${structure} became one`);
  failed += structure;
  if (tokenizerConfig.chat_template) {  // gpt-oss's package has none
    const [prompts, wrong] = changed(folder, tokenizerConfig.chat_template, marks);
    console.log(`${name}: ${prompts} prompts of its template with such texts everywhere, ${wrong} have other special tokens`);
    failed += wrong;
  }
  let different = 0;
  all.forEach((text, i) => {
    const expected = theirs.encode(text, { add_special_tokens: false });
    if (JSON.stringify(expected) === JSON.stringify(ours[i])) return;
    if (++different <= 5) console.log(`${name}: ${JSON.stringify(text)}\n  ours   ${ours[i]}\n  theirs ${expected}`);
  });
  console.log(`${name}: ${all.length} texts, ${different} differ`);
  failed += different;
}
process.exit(failed === 0 ? 0 : 1);
