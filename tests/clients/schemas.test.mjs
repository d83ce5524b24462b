// Random schemas: each value can be written, and each text that ends by itself is valid, as ajv says.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import assert from "node:assert/strict";
import { test } from "node:test";
import { Ajv2020 } from "ajv/dist/2020.js";
import addFormats from "ajv-formats";
import { FORMATS, Generator, Random, rewrite, write } from "./random_schema.mjs";
import { isEmail, isUri, isUriReference } from "./strict_formats.mjs";

const COUNT = process.env.KVCACHE_SLOW_TESTS ? 10_000 : 400;

function validator() {
  const ajv = new Ajv2020({ strict: false, multipleOfPrecision: 9 });
  addFormats(ajv);
  // Where ajv-formats takes less than the standard: RFC 5321 has quoted local parts, hosts without a point and
  // addresses; RFC 3986 has an empty path.
  ajv.addFormat("email", isEmail);
  ajv.addFormat("uri", isUri);
  ajv.addFormat("uri-reference", isUriReference);
  ajv.addFormat("regex", true);
  return ajv;
}

// Doubles round what is longer.
function isExact(text) {
  return !/\d(?:\.?\d){16}/.test(text.replace(/"(?:[^"\\]|\\.)*"/g, ""));
}

async function walk(lines) {
  const walker = spawn(process.env.KVCACHE_SCHEMA_WALKER, { stdio: ["pipe", "pipe", "inherit"] });
  const answers = [];
  const read = (async () => {
    for await (const line of createInterface({ input: walker.stdout })) answers.push(JSON.parse(line));
  })();
  for (const line of lines) walker.stdin.write(`${JSON.stringify(line)}\n`);
  walker.stdin.end();
  await read;
  return answers;
}

function cases(ajv) {
  const made = [];
  for (let seed = 1; made.length < COUNT; ++seed) {
    const random = new Random(seed);
    const { schema, make } = new Generator(random).root();
    const isValid = ajv.compile(schema);
    const texts = [];
    for (let i = 0; i < 6; ++i) {
      const value = make();
      if (!isValid(value)) continue;
      const text = write(value, random);
      texts.push(text);
      // Constants have one way to write numbers with a sign or an exponent.
      if (!/"(enum|const|multipleOf)"/.test(JSON.stringify(schema))) texts.push(rewrite(text, random));
    }
    made.push({ seed, schema, texts, isValid });
  }
  return made;
}

test(`${COUNT} random schemas`, async () => {
  const ajv = validator();
  const all = cases(ajv);
  const answers = await walk(all.map(({ schema, texts }) => ({ schema, texts })));
  assert.equal(answers.length, all.length);
  let texts = 0;
  let walks = 0;
  let errors = 0;
  answers.forEach((answer, i) => {
    const { seed, schema, isValid } = all[i];
    const where = `seed ${seed}: ${JSON.stringify(schema)}`;
    if (answer.error) {
      // What is refused has a reason: nothing fits, or it is documented as such.
      assert.match(answer.error, /allows no value|minProperties/, where);
      if (/allows no value/.test(answer.error)) assert.equal(all[i].texts.length, 0, where);
      ++errors;
      return;
    }
    assert.deepEqual(answer.refused, [], where);
    assert.deepEqual(answer.stuck, [], where);
    assert.ok(!answer.full, where);
    texts += all[i].texts.length;
    for (const text of answer.walks) {
      const value = JSON.parse(text);
      assert.ok(isValid(value) || !isExact(text), `${where}\n${text}\n${JSON.stringify(isValid.errors)}`);
      ++walks;
    }
  });
  console.log(`${texts} texts, ${walks} walks, ${errors} schemas refused`);
  assert.ok(texts > COUNT && walks > COUNT && errors < COUNT / 20);
});

test("judges of formats that ajv takes in part", () => {
  for (const [judge, allowed, others] of [
    [
      isEmail,
      ["a@b", '"a b\\""@c.d', "a@[1.2.3.4]", "a@[IPv6:::1]", "a@[x-y:z@]", `${"a".repeat(64)}@b`],
      ["a", "@b", "a@", "a@b@c", ".a@b", "a..b@c", "a@-b", "a@b.", '"a"b@c', "a@[1.2.3]", "é@b", `${"a".repeat(65)}@b`],
    ],
    [
      isUri,
      ["a:", "http://[::1]:80/x?y#z", "urn:a:b", "a://b@c:/", "a:/b//c", "x://[v1.a:b]", "a:%20"],
      ["a", "1a:b", "a:%2", "a: b", "a://b:x", "a://[::1", "a://b@c@d", "a:#b#c", "a://[1.2.3.4]", "a:é", "a:[b]"],
    ],
    [isUriReference, ["", "b", "//", "/a:b", "./a:b", "?#", "//[::]", "..//"], [":a", "a b", "//a:b:c", "///%", "1:a", "^"]],
  ]) {
    for (const text of allowed) assert.ok(judge(text), `${judge.name} ${text}`);
    for (const text of others) assert.ok(!judge(text), `${judge.name} ${text}`);
  }
});

// Each walk is one that the standard allows.
test("walks of formats", async () => {
  const judges = { email: isEmail, uri: isUri, "uri-reference": isUriReference };
  const lines = Object.keys(judges).flatMap((format) =>
    Array.from({ length: COUNT / 8 }, () => ({ schema: { type: "string", format }, texts: [] })),
  );
  const answers = await walk(lines);
  answers.forEach((answer, i) => {
    const { format } = lines[i].schema;
    assert.ok(!answer.error && !answer.full && answer.walks.length > 0, `${format} ${JSON.stringify(answer)}`);
    for (const text of answer.walks) assert.ok(judges[format](JSON.parse(text)), `${format} ${text}`);
  });
});

test("formats as ajv has them", async () => {
  const ajv = validator();
  for (const format of Object.keys(FORMATS)) {
    const isValid = ajv.compile({ type: "string", format });
    for (const value of FORMATS[format]) assert.ok(isValid(value), `${format} ${value}`);
  }
});
