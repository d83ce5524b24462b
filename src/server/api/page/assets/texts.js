// Elements, numbers, and foreign texts with all of their characters in sight.

export const byId = (id) => document.getElementById(id);
export const number = (value) => Math.round(value).toLocaleString('en');

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// Writes a text only if it is another one: what is selected or read out stays so.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function duration(ms) {
  if (ms === null) return '–';
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.floor(ms / 1000) % 60} s`;
}

export function bytes(count) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (count >= size) return `${(count / size).toFixed(count < 10 * size ? 1 : 0)} ${unit}`;
  }
  return `${count} B`;
}

// ---- Foreign texts

// Blanks whose number or presence matters, control characters, and what hides or turns text.
const blank = / {2,}| (?=[\r\n\t])|(?<=[\r\n\t]) |\r\n|[\u0000-\u001f\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ufff9-\ufffb]/gu;
const blankOrEdge = new RegExp(`^ | $|${blank.source}`, 'gu');

function shown(blank) {
  const code = blank.codePointAt(0);
  if (blank === '\r\n') return '␍↵';
  if (blank === '\n') return '↵';
  if (blank === '\t') return '⇥';
  if (blank[0] === ' ') return '·'.repeat(blank.length);
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return '␡';
  return `U+${code.toString(16).toUpperCase().padStart(4, '0')}`;
}

// Returns nodes that show `text`. `breaks`: lines end where those of the text do. `inside`: it is a part of a text, in
// which a blank at an end is one between words.
export function visible(text, {breaks = false, inside = false} = {}) {
  const made = document.createDocumentFragment();
  let at = 0;
  for (const match of text.matchAll(inside ? blank : blankOrEdge)) {
    if (match.index > at) made.append(text.slice(at, match.index));
    made.append(element('span', 'blank', shown(match[0])));
    if (breaks && match[0].endsWith('\n')) made.append('\n');
    at = match.index + match[0].length;
  }
  made.append(text.slice(at));
  return made;
}

// The same, in an element in which a text from right to left turns nothing around it.
export function foreign(tag, className, text, options) {
  const made = element(tag, className);
  made.dir = 'auto';
  made.append(visible(text, options));
  return made;
}

// ---- The server

let key = sessionStorage.getItem('kvcache-key') || '';

export const hasKey = () => key !== '';
export function useKey(text) {
  key = text;
  sessionStorage.setItem('kvcache-key', key);
}

export function request(path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  return fetch(path, {
    method: body === undefined ? 'GET' : 'POST',
    headers,
    signal,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

export async function askJson(path, body) {
  const answer = await request(path, body);
  const json = await answer.json();
  if (!answer.ok) throw new Error(json.error?.message || json.error || `status ${answer.status}`);
  return json;
}
