// Compares JSON with a pattern. An object's pattern names some of its keys; a list's pattern has all of
// its elements; other values are equal. An object with one of these keys alone is an operator:
//
//   {"$like": "^a"}        a text that has a match of this regular expression
//   {"$type": "number"}    a value of this type (typeof)
//   {"$from": 1, "$to": 2} a number of this range
//   {"$each": pattern}     a list of such elements, or an empty one
//   {"$some": [patterns]}  a list with an element for each of these patterns
//   {"$json": pattern}     a text that is such JSON
//   {"$join": [path, pattern]}  a list; what its elements have at a path such as "a.0.b", joined to a text
//   {"$values": pattern}   an object with such values
//   {"$either": [patterns]}  a value that follows one of these
//   {"$absent": true}      no value

const operators = {
  $like: (value, rule) => typeof value === 'string' && new RegExp(rule, 'u').test(value),
  $type: (value, rule) => typeof value === rule,
  $from: (value, rule, {$to = Infinity}) => typeof value === 'number' && value >= rule && value <= $to,
  $each: (value, rule) => Array.isArray(value) && value.every((element) => difference(element, rule) === null),
  $some: (value, rule) => Array.isArray(value) &&
      rule.every((each) => value.some((element) => difference(element, each) === null)),
  $json: (value, rule) => difference(parsed(value), rule) === null,
  $join: (value, [path, rule]) => Array.isArray(value) &&
      difference(value.map((element) => at(element, path) ?? '').join(''), rule) === null,
  $values: (value, rule) => typeof value === 'object' && difference(Object.values(value), {$each: rule}) === null,
  $either: (value, rule) => rule.some((each) => difference(value, each) === null),
  $absent: (value) => value === undefined,
};

const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
};

const at = (value, path) => path.split('.').reduce((inner, key) => inner?.[key], value);

// Returns where a value does not follow a pattern, as a text, or null.
export function difference(value, pattern, place = '$') {
  const wrong = () => `${place} is ${JSON.stringify(value)}; must be ${JSON.stringify(pattern)}`;
  if (pattern === null || typeof pattern !== 'object') return value === pattern ? null : wrong();
  const [operator] = Object.keys(pattern);
  if (operators[operator]) return operators[operator](value, pattern[operator], pattern) ? null : wrong();
  if (value === null || typeof value !== 'object' || Array.isArray(value) !== Array.isArray(pattern)) {
    return wrong();
  }
  if (Array.isArray(pattern) && value.length !== pattern.length) return wrong();
  for (const key of Object.keys(pattern)) {
    const inner = difference(value[key], pattern[key], `${place}.${key}`);
    if (inner !== null) return inner;
  }
  return null;
}
