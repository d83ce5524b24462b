// The prefixes in memory: a row for each part that prompts share, with a bar at its place. Enter, a click or a touch
// opens the whole text of a row.
import {askJson, byId, element, foreign, number, setText} from './texts.js';

const rows = new Map();  // by the node's id
let model = '';

// ---- The scale: a short prefix is seen beside one a thousand times as long.

const linear = 16;  // up to about so many tokens, equal lengths are about equally long
const place = (tokens, end) => Math.log1p(tokens / linear) / Math.log1p(end / linear);
const percent = (part) => `${(100 * part).toFixed(3)}%`;
const shortNumber = (tokens) => tokens >= 1000 ? `${tokens / 1000}k` : String(tokens);

function drawAxis(end) {
  const axis = byId('axis').firstElementChild;
  const shown = [0, 10, 100, 1000, 10000, 100000, 1000000].filter((tokens) => tokens < end * 0.6);
  shown.push(end);
  if (axis.dataset.seen === shown.join()) return;
  axis.dataset.seen = shown.join();
  axis.replaceChildren(...shown.map((tokens) => {
    const tick = element('span', 'tick', tokens === end ? number(tokens) : shortNumber(tokens));
    tick.style.left = percent(place(tokens, end));
    return tick;
  }));
}

// ---- Rows

function facts(node, children) {
  const list = [`tokens ${number(node.begin)} to ${number(node.end)}`];
  if (children > 1) list.push(`${children} prompts go on from here`);
  const points = node.parts.filter((part) => part.state).map((part) => number(part.end));
  list.push(points.length > 0 ? `can be restored at ${points.join(', ')}` : 'part of a longer one');
  if (node.requests > 0) list.push(`in use by ${node.requests}`);
  if (node.pinned) list.push('pinned');
  return list;
}

function drawTrack(track, node, end) {
  track.replaceChildren();
  if (node.parent) {
    const from = element('span', 'from');
    from.style.left = percent(place(node.begin, end));
    track.append(from);
  }
  let begin = node.begin;
  for (const part of node.parts) {
    const bar = element('span', `bar ${part.state ? 'kept' : 'part'}`);
    bar.style.left = percent(place(begin, end));
    bar.style.width = percent(place(part.end, end) - place(begin, end));
    track.append(bar);
    begin = part.end;
  }
  for (const [name, is] of [['live', node.requests > 0], ['pinned', node.pinned]]) {
    if (!is) continue;
    const mark = element('span', `mark ${name}`);
    mark.style.left = percent(place(node.end, end));
    track.append(mark);
  }
}

class Row {
  constructor(node) {
    this.item = element('div', 'node');
    this.item.dataset.node = node.id;
    this.item.setAttribute('role', 'treeitem');
    this.item.setAttribute('aria-expanded', 'false');
    this.item.tabIndex = -1;
    this.line = element('div', 'line');
    this.track = element('div', 'track');
    this.count = element('span', 'count');
    this.text = element('div', 'text');
    const what = element('div', 'what');
    what.append(this.count, ' ', this.text);
    this.line.append(this.track, what);
    this.item.append(this.line);
    this.line.addEventListener('click', () => {
      rove(this.item);
      this.toggle();
    });
  }

  update(node, depth, children, end) {
    this.node = node;
    this.children = children;
    const seen = JSON.stringify([node, depth, children, end]);
    if (this.seen === seen) return;
    this.seen = seen;
    this.item.setAttribute('aria-level', depth);
    setText(this.count, number(node.end - node.begin));
    this.count.style.marginLeft = `${Math.min(depth - 1, 12) * 0.9}em`;
    drawTrack(this.track, node, end);
    this.text.replaceChildren(foreign('bdi', '', node.text));
    if (this.whole) this.fill();
    this.name();
  }

  // An open row is named by its content.
  name() {
    const text = `${this.count.textContent} ${this.text.textContent}`;
    if (this.whole) this.item.removeAttribute('aria-label');
    else this.item.setAttribute('aria-label', `${facts(this.node, this.children).join(', ')}: ${text}`);
  }

  toggle() {
    const opens = !this.whole;
    this.item.setAttribute('aria-expanded', opens);
    if (opens) {
      this.whole = element('div', 'whole');
      this.facts = element('p', 'facts');
      this.body = element('div', 'body');
      this.body.tabIndex = 0;
      this.body.setAttribute('role', 'group');
      this.body.setAttribute('aria-label', 'text of the prefix');
      this.more = element('button', '', 'Show more');
      this.more.addEventListener('click', () => this.load());
      this.whole.append(this.facts, this.body, this.more);
      this.item.append(this.whole);
      this.shownTokens = 0;
      this.fill();
      if (!this.node.whole) this.load();
    } else {
      this.whole.remove();
      this.whole = null;
    }
    this.name();
  }

  fill() {
    const tokens = this.node.end - this.node.begin;
    setText(this.facts, facts(this.node, this.children).join(' · '));
    if (this.node.whole) {
      this.body.replaceChildren(foreign('div', '', this.node.text, {breaks: true}));
      this.shownTokens = tokens;
    }
    this.more.hidden = this.shownTokens >= tokens || this.shownTokens === 0;
    setText(this.more, `Show more (${number(tokens - this.shownTokens)} tokens)`);
  }

  async load() {
    this.more.disabled = true;
    const {body, shownTokens: from} = this;
    try {
      const got = await askJson(`/state/prefix?model=${encodeURIComponent(model)}&node=${this.node.id}&from=${from}`);
      if (this.body !== body || this.shownTokens !== from) return;
      if (got.length === 0) throw new Error('it is not in memory any more');
      this.body.append(foreign('div', '', got.text, {breaks: true, inside: from > 0}));
      this.shownTokens = got.end;
      this.fill();
    } catch (error) {
      if (this.body === body) this.body.append(element('p', 'error', error.message));
    } finally {
      this.more.disabled = false;
    }
  }
}

// ---- The tree

// One row is reached by Tab, the others by arrows.
function rove(item) {
  for (const row of rows.values()) row.item.tabIndex = row.item === item ? 0 : -1;
  item.focus({preventScroll: true});
}

function keepOneReachable() {
  const list = [...rows.values()];
  if (list.length > 0 && !list.some((row) => row.item.tabIndex === 0)) list[0].item.tabIndex = 0;
}

export function drawPrefixes(state, chosen) {
  if (model !== (state.model || '')) {
    for (const row of rows.values()) row.item.remove();
    rows.clear();
    model = state.model || '';
  }
  const {nodes} = state;
  const end = Math.max(...nodes.map((node) => node.end), 16);
  const depths = new Map([[0, 0]]);
  const children = new Map();
  for (const node of nodes) children.set(node.parent, (children.get(node.parent) || 0) + 1);
  const trie = byId('trie');
  const left = new Set(rows.keys());
  let before = null;
  for (const node of nodes) {
    const depth = (depths.get(node.parent) || 0) + 1;
    depths.set(node.id, depth);
    if (!rows.has(node.id)) rows.set(node.id, new Row(node));
    const row = rows.get(node.id);
    left.delete(node.id);
    row.update(node, depth, children.get(node.id) || 0, end);
    const next = before ? before.nextSibling : trie.firstChild;
    if (next !== row.item) trie.insertBefore(row.item, next);
    before = row.item;
  }
  for (const id of left) {
    rows.get(id).item.remove();
    rows.delete(id);
  }
  keepOneReachable();
  byId('axis').hidden = trie.hidden = nodes.length === 0;
  if (nodes.length > 0) drawAxis(end);
  const note = byId('trie-note');
  note.hidden = nodes.length > 0 && state.all_nodes;
  setText(note, nodes.length > 0 ? `These are the ${nodes.length} that were used last; there are more.` :
    state.model === null && chosen ? `${chosen} is not loaded; a request loads it.` :
    'No prompt is in memory. Ask something below.');
}

byId('trie').addEventListener('keydown', (event) => {
  const item = event.target;
  if (item.getAttribute('role') !== 'treeitem') return;
  const row = rows.get(Number(item.dataset.node));
  const all = [...byId('trie').children];
  const go = {ArrowDown: item.nextElementSibling, ArrowUp: item.previousElementSibling, Home: all[0], End: all.at(-1)};
  if (event.key in go) {
    if (go[event.key]) {
      rove(go[event.key]);
      go[event.key].scrollIntoView({block: 'nearest'});
    }
  } else if (event.key === 'Enter' || event.key === ' ' ||
      event.key === (row.whole ? 'ArrowLeft' : 'ArrowRight')) {
    row.toggle();
  } else {
    return;
  }
  event.preventDefault();
});
