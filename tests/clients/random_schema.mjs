// Random JSON schemas with values that they allow, from a seed, and ways to write a value.

export class Random {
  constructor(seed) {
    this.state = seed >>> 0 || 1;
  }
  next() {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let t = this.state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return (t ^ (t >>> 14)) >>> 0;
  }
  below(count) {
    return this.next() % count;
  }
  between(first, last) {
    return first + this.below(last - first + 1);
  }
  chance(percent) {
    return this.below(100) < percent;
  }
  pick(list) {
    return list[this.below(list.length)];
  }
}

const CHARACTERS = [..."abcXYZ019 _-.,:;/\\\"'<>{}[]\n\t\u0001\u007fé\u00df\u4e2d\u2028\ufeff😀𝔸"];
export const FORMATS = {
  date: ["2024-12-31", "2000-02-29", "0001-01-01"],
  time: ["23:59:60Z", "00:00:00.123456789+23:59", "01:29:60+01:30"],
  "date-time": ["2024-02-29T12:00:00Z", "1990-12-31T15:59:60-08:00"],
  duration: ["P1Y2M3DT4H5M6S", "PT36H", "P5W", "P1Y2D"],
  email: ["a@b.c", "first.last+tag@sub.example.org"],
  hostname: ["localhost", "a-b.example.com", "xn--bcher-kva.example"],
  ipv4: ["0.0.0.0", "255.249.199.9"],
  ipv6: ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:0:0:2", "::ffff:1.2.3.4"],
  uri: ["https://user@a-b.example:8080/a/b;c?q=1&r=%20#f", "urn:isbn:0451450523", "file:///etc/x"],
  "uri-reference": ["../a?b#c", "//host/x", "mailto:a@b.c", "#x"],
  uuid: ["123E4567-e89b-12d3-a456-426614174000"],
  "json-pointer": ["", "/a~0b/~1", "/"],
  "relative-json-pointer": ["0", "1/a", "2#"],
};
const PATTERNS = [
  ["^[a-z]{2,5}$", ["ab", "abcde"]],
  ["^\\d+(\\.\\d{2})?$", ["1", "12.34"]],
  ["b", ["b", "abc", "\nb\n"]],
  ["^[\\s\\S]*$", ["", "a\nb\u2028"]],
  ["^\\p{Lu}\\p{Ll}*$", ["A", "Éa", "Ωμέγα"]],
  ["^(?!.*--)[\\w-]{1,9}$", ["a-b", "x_1"]],
  ["^(?=.*\\d)(?=.*[a-z]).{4,8}$", ["a1bc", "zzzzzz9"]],
  ["^[^\\u0000-\\u001f\"]*$", ["", "é", "\u007f"]],
  ["^(a|bc)*$", ["", "abca"]],
  ["\\bcat\\b", ["cat", "a cat!"]],
  ["^(.{1,10}){1,5}$", ["a", "x".repeat(50)]],
  ["^$|^[0-9a-f]{4}$", ["", "00ff"]],
];

// A schema, and `make`, which returns a value that it should allow.
export class Generator {
  constructor(random) {
    this.random = random;
    this.defs = {};
  }

  root() {
    const made = this.schema(0);
    const schema = Object.keys(this.defs).length > 0 ? { ...made.schema, $defs: this.defs } : made.schema;
    return { schema, make: made.make };
  }

  schema(depth) {
    const kinds = ["integer", "number", "string", "string", "enum", "const", "boolean", "null"];
    const nested = ["object", "object", "object", "array", "anyOf", "oneOf", "allOf", "ref", "if", "any"];
    const kind = this.random.pick(depth < 3 ? [...kinds, ...nested] : kinds);
    const made = this[`${kind}Schema`](depth);
    if (this.random.chance(10)) made.schema.title = "A title";
    return made;
  }

  booleanSchema() {
    return { schema: { type: "boolean" }, make: () => this.random.chance(50) };
  }
  nullSchema() {
    return { schema: { type: "null" }, make: () => null };
  }
  anySchema(depth) {
    return { schema: {}, make: () => this.anything(depth) };
  }
  anything(depth) {
    const r = this.random;
    if (depth > 2 || r.chance(60)) return r.pick([null, true, -0.5, 1e21, 12, "x\n", "", 5e-324]);
    if (r.chance(50)) return [this.anything(depth + 1)];
    return { [this.text(0, 4)]: this.anything(depth + 1) };
  }

  integerSchema() {
    const r = this.random;
    const size = r.pick([10, 1000, 9007199254740991, 1e9]);
    const schema = { type: "integer" };
    let first = -size;
    let last = size;
    if (r.chance(50)) schema.minimum = first = r.chance(30) ? -size : r.between(-9, 9);
    if (r.chance(50)) schema.maximum = last = Math.max(first, r.chance(30) ? size : first + r.below(100));
    if (r.chance(10)) schema.exclusiveMinimum = first - 1;
    const step = r.chance(20) ? r.pick([1, 2, 7, 10, 60]) : 0;
    if (step > 0) schema.multipleOf = step;
    return {
      schema,
      make: () => {
        const value = Math.max(first, Math.min(last, first + r.below(100) + (r.chance(10) ? 1e6 : 0)));
        return step > 0 ? Math.min(Math.ceil(value / step), Math.floor(last / step)) * step : r.chance(10) ? last : value;
      },
    };
  }

  numberSchema() {
    const r = this.random;
    const schema = { type: "number" };
    const least = r.between(-40, 40) / 4;
    const width = r.between(1, 40) / 8;
    const lower = r.pick(["minimum", "exclusiveMinimum", ""]);
    const upper = r.pick(["maximum", "exclusiveMaximum", ""]);
    if (lower) schema[lower] = least;
    if (upper) schema[upper] = least + width;
    if (r.chance(15)) schema.multipleOf = r.pick([0.125, 0.25, 0.5]);
    const step = schema.multipleOf ?? 0;
    return {
      schema,
      make: () => {
        if (!lower && !upper && !step && r.chance(50)) return r.pick([1e300, 5e-324, -1.5e-7, 0.1, 123456789012345680000, 1e21]);
        const value = least + (width * r.between(1, 999)) / 1000;
        return step > 0 ? Math.round(value / step) * step : value;
      },
    };
  }

  text(least, most) {
    let text = "";
    for (let i = this.random.between(least, most); i > 0; --i) text += this.random.pick(CHARACTERS);
    return text;
  }

  stringSchema() {
    const r = this.random;
    const kind = r.below(4);
    if (kind === 0) {
      const format = r.pick(Object.keys(FORMATS));
      return { schema: { type: "string", format }, make: () => r.pick(FORMATS[format]) };
    }
    if (kind === 1) {
      const [pattern, values] = r.pick(PATTERNS);
      const schema = { type: "string", pattern };
      if (r.chance(30)) schema.maxLength = r.between(2, 60);
      if (r.chance(20)) schema.format = r.pick(["password", "phone", "regex"]);
      return { schema, make: () => r.pick(values) };
    }
    const schema = { type: "string" };
    const least = r.below(4);
    const most = least + r.below(6);
    if (r.chance(50)) schema.minLength = least;
    if (r.chance(50)) schema.maxLength = most;
    if (r.chance(5)) schema.contentEncoding = "base64";
    return { schema, make: () => this.text(least, most) };
  }

  constants() {
    const r = this.random;
    return [1, -2, 0.5, 1e21, null, true, "a", "é\n\"</", "", [1, { a: [] }], { x: 1, "y z": null }, this.text(1, 5)];
  }
  enumSchema() {
    const values = this.constants().filter(() => this.random.chance(40));
    if (values.length === 0) values.push("only");
    const schema = { enum: values };
    return { schema, make: () => this.random.pick(values) };
  }
  constSchema() {
    const value = this.random.pick(this.constants());
    return { schema: { const: value }, make: () => value };
  }

  arraySchema(depth) {
    const r = this.random;
    const schema = { type: "array" };
    const first = [];
    for (let i = r.chance(30) ? r.below(3) : 0; i > 0; --i) first.push(this.schema(depth + 1));
    if (first.length > 0) schema.prefixItems = first.map((one) => one.schema);
    const rest = r.chance(70) ? this.schema(depth + 1) : null;
    if (rest) schema.items = rest.schema;
    const least = r.below(3);
    const most = least + r.below(4);
    if (r.chance(40)) schema.minItems = least;
    if (r.chance(40)) schema.maxItems = most;
    const item = (i) => (i < first.length ? first[i].make() : rest ? rest.make() : this.anything(depth + 1));
    return { schema, make: () => Array.from({ length: r.between(least, most) }, (_, i) => item(i)) };
  }

  // Properties come in the order of the schema, then others.
  objectSchema(depth) {
    const r = this.random;
    const schema = { type: "object" };
    const members = [];
    for (let i = r.below(5); i > 0; --i) {
      members.push({ name: r.pick(["a", "b", "c d", "é", "x-1", "q\"", "list"]) + i, ...this.schema(depth + 1) });
    }
    const required = members.filter(() => r.chance(50));
    if (members.length > 0) schema.properties = Object.fromEntries(members.map((m) => [m.name, m.schema]));
    if (required.length > 0) schema.required = required.map((m) => m.name);
    let others = { name: () => `_${this.text(0, 3)}`, make: () => this.anything(depth + 1) };
    const choice = r.below(5);
    if (choice === 0) {
      schema.additionalProperties = false;
      others = null;
    } else if (choice === 1) {
      const value = this.schema(depth + 1);
      schema.additionalProperties = value.schema;
      others.make = value.make;
    } else if (choice === 2) {
      const value = this.schema(depth + 1);
      schema.patternProperties = { "^_": value.schema };
      if (r.chance(50)) schema.additionalProperties = false;
      others.make = value.make;
    } else if (choice === 3 && members.length === 0) {
      schema.propertyNames = r.pick([{ maxLength: 4 }, { type: "string" }, { pattern: "^_" }]);
    }
    if (r.chance(15)) schema.maxProperties = required.length + 2;
    if (r.chance(15)) schema.minProperties = Math.min(1, members.length);
    if (r.chance(10) && members.length > 1) schema.dependentRequired = { [members[0].name]: [members[1].name] };
    const make = () => {
      const value = {};
      for (const member of members) if (required.includes(member) || r.chance(50)) value[member.name] = member.make();
      for (let i = others ? r.below(3) : 0; i > 0; --i) value[others.name()] = others.make();
      return value;
    };
    return { schema, make };
  }

  anyOfSchema(depth) {
    const list = [this.schema(depth + 1), this.schema(depth + 1)];
    return { schema: { anyOf: list.map((one) => one.schema) }, make: () => this.random.pick(list).make() };
  }
  oneOfSchema(depth) {
    const kinds = ["a", "b"].map((kind) => {
      const one = this.schema(depth + 1);
      return {
        schema: { type: "object", properties: { kind: { const: kind }, value: one.schema }, required: ["kind"], additionalProperties: false },
        make: () => (this.random.chance(70) ? { kind, value: one.make() } : { kind }),
      };
    });
    return { schema: { oneOf: kinds.map((one) => one.schema) }, make: () => this.random.pick(kinds).make() };
  }
  allOfSchema() {
    const r = this.random;
    if (r.chance(50)) {
      const least = r.between(-9, 9);
      return { schema: { type: "number", allOf: [{ minimum: least }, { maximum: least + 4 }] }, make: () => least + r.below(400) / 100 };
    }
    const schema = {
      allOf: [
        { type: "object", properties: { a: { type: "integer" } }, required: ["a"] },
        { properties: { b: { type: "string", minLength: 1 }, a: { minimum: 3 } } },
      ],
    };
    return { schema, make: () => (r.chance(50) ? { a: r.between(3, 99), b: this.text(1, 3) } : { a: 3 }) };
  }
  refSchema(depth) {
    const r = this.random;
    const name = `d${Object.keys(this.defs).length}`;
    if (r.chance(30)) {
      this.defs[name] = {
        type: "object",
        properties: { v: { type: "integer" }, next: { anyOf: [{ $ref: `#/$defs/${name}` }, { type: "null" }] } },
        required: ["v", "next"],
        additionalProperties: false,
      };
      const make = (left) => ({ v: left, next: left > 0 ? make(left - 1) : null });
      return { schema: { $ref: `#/$defs/${name}` }, make: () => make(r.below(3)) };
    }
    this.defs[name] = {};
    const inner = this.schema(depth + 1);
    this.defs[name] = inner.schema;
    return { schema: { $ref: `#/$defs/${name}`, description: "x" }, make: inner.make };
  }
  ifSchema(depth) {
    const then = this.schema(depth + 1);
    const other = this.schema(depth + 1);
    const schema = {
      type: "object",
      properties: { kind: { enum: ["x", "y", "z"] } },
      required: ["kind"],
      if: { properties: { kind: { const: "x" } } },
      then: { properties: { v: then.schema }, required: ["v"] },
      else: { properties: { v: other.schema } },
    };
    return {
      schema,
      make: () => (this.random.chance(50) ? { kind: "x", v: then.make() } : { kind: "z", v: other.make() }),
    };
  }
}

// Writes a value as JSON in one of the ways that JSON has.
export function write(value, random) {
  const space = () => (random.chance(50) ? " " : "");
  if (Array.isArray(value)) return `[${value.map((one) => write(one, random)).join(`,${space()}`)}]`;
  if (value !== null && typeof value === "object") {
    const members = Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}:${space()}${write(one, random)}`);
    return `{${members.join(`,${space()}`)}}`;
  }
  return JSON.stringify(value);
}

// Writes each text and number, outside of constants, in other ways.
export function rewrite(text, random) {
  return text.replace(/"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?/g, (token, at) => {
    if (token[0] !== '"') return number(token, random);
    if (/^"[^"]*"\s*:/.test(text.slice(at)) || !random.chance(50)) return token;
    return `"${[...JSON.parse(token)].map((c) => character(c, random)).join("")}"`;
  });
}

function character(c, random) {
  const plain = JSON.stringify(c).slice(1, -1);
  if (random.chance(60)) return plain;
  const units = Array.from({ length: c.length }, (_, i) => c.charCodeAt(i).toString(16).padStart(4, "0"));
  const hex = random.chance(50) ? (unit) => unit.toUpperCase() : (unit) => unit;
  return units.map((unit) => `\\u${hex(unit)}`).join("");
}

function number(token, random) {
  if (token.includes("e") || random.chance(40)) return random.chance(50) ? token.toUpperCase() : token;
  return token.includes(".") ? `${token}00` : random.chance(50) ? `${token}.0` : `${token}e0`;
}
