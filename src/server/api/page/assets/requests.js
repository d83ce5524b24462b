// The sequences at work, and the last requests: what they reused, why not more, and how they ended.
import {byId, duration, element, foreign, number, setText, visible} from './texts.js';

// Parts of a whole. Between two bars the ground is seen, so that each stands against it.
function stack(parts, whole) {
  const bars = element('div', 'stack');
  bars.setAttribute('role', 'img');
  bars.setAttribute('aria-label', parts.map(([name, tokens]) => `${number(tokens)} tokens ${name}`)
      .join(', '));
  for (const [name, tokens] of parts) {
    if (tokens <= 0) continue;
    const bar = element('span', `bar ${name === 'reused' ? 'cached' : name}`);
    bar.style.width = `${100 * tokens / Math.max(whole, 1)}%`;
    bars.append(bar);
  }
  return bars;
}

// ---- Sequences

function sequenceRow(one, context) {
  const row = element('div', 'row');
  const what = element('div', 'what');
  const name = one.sequence === null ? `request ${one.request}` : `sequence ${one.sequence}`;
  what.append(element('span', '', `${name}: ${one.state}`),
      element('span', '', `${number(one.cells)} of ${number(context)} cells`));
  const computed = Math.max(Math.min(one.cells, one.prompt_tokens) - one.cached_tokens, 0);
  row.append(what, stack([['reused', one.cached_tokens], ['computed', computed],
    ['generated', one.generated_tokens]], context));
  return row;
}

function scale(most) {
  const axis = element('div', 'scale');
  for (const part of [0, 0.5, 1]) axis.append(element('span', '', number(most * part)));
  axis.lastChild.append(' cells');
  return axis;
}

export function drawSequences(state) {
  const list = byId('sequences');
  const seen = JSON.stringify([state.sequences, state.context]);
  if (list.dataset.seen === seen) return;
  list.dataset.seen = seen;
  list.replaceChildren(...state.sequences.map((one) => sequenceRow(one, state.context)));
  if (state.sequences.length > 0) list.append(scale(state.context));
  else list.append(element('p', 'empty', 'None is at work.'));
}

// ---- Requests

const reasons = {
  new: 'new', differs: 'differs from a cached prompt', evicted: 'had to make room',
  'no state': 'no restore point there', 'restore failed': 'could not be restored',
  'last token': 'last token', 'other picture': 'another picture', 'part of a picture': 'a part of a picture',
};
const states = {
  queued: 'waits', prompt: 'reads', generating: 'writes', done: 'done', failed: 'failed', cancelled: 'cancelled',
};

function timeCell(one) {
  const at = new Date(one.time_ms);
  const time = element('time', '', at.toLocaleTimeString('en-GB'));
  time.dateTime = at.toISOString();
  return [time];
}

function requestCell(one) {
  const parts = [element('div', '', one.route)];
  if (one.model) parts.push(element('div', 'soft', one.model));
  if (one.user) parts.push(element('div', 'soft', `user ${one.user}`));
  return parts;
}

function stateCell(one) {
  const parts = [element('span', `state ${one.state}`, states[one.state])];
  if (one.status >= 400) parts.push(element('span', 'soft', ` ${one.status}`));
  if (one.parked > 0) parts.push(element('div', 'soft', one.parked === 1 ? 'parked once' : `parked ${one.parked} times`));
  return parts;
}

function promptCell(one) {
  if (one.prompt_tokens === null) return ['–'];
  const tiers = Object.entries(one.tiers).filter(([, tokens]) => tokens > 0)
      .map(([tier, tokens]) => `${number(tokens)} ${tier}`).join(', ');
  const reused = one.cached_tokens > 0 ? `${number(one.cached_tokens)} reused (${tiers || 'live'})` : 'none reused';
  return [element('div', '', `${number(one.prompt_tokens)} tokens, ${reused}`),
    stack([['reused', one.cached_tokens], ['computed', one.prompt_tokens - one.cached_tokens]], one.prompt_tokens)];
}

// The line of the prompt, with a mark where it leaves the cached one.
function differenceLine({before, prompt, after, cached, token}) {
  const line = element('div', 'differs', 'differs at: ');
  const text = foreign('bdi', 'line-text', before, {inside: true});
  text.append(foreign('mark', '', prompt), visible(after, {inside: true}));
  line.append(text, element('span', 'soft', ` (token ${number(token)}`));
  if (cached) line.lastChild.append(', cached: ', foreign('bdi', 'line-text', cached));
  line.lastChild.append(')');
  return line;
}

function whyCell(one) {
  const parts = [];
  if (one.error) parts.push(foreign('div', 'error', one.error, {breaks: true}));
  const missed = one.missed.map(({tokens, reason}) => {
    const name = reason.replaceAll('_', ' ');
    return `${number(tokens)} ${reasons[name] || name}`;
  }).join(', ');
  if (missed) parts.push(element('div', '', missed));
  if (one.difference) parts.push(differenceLine(one.difference));
  return parts.length > 0 ? parts : ['–'];
}

function answerCell(one) {
  const ends = {eos: 'ended by itself', length: 'at its limit', stop: 'stop text'};
  const parts = [element('div', '', `${number(one.generated_tokens)} tokens`)];
  if (one.end && one.prompt_tokens !== null) parts.push(element('div', 'soft', ends[one.end] || one.end));
  return parts;
}

const columns = [
  ['time', timeCell], ['request', requestCell], ['state', stateCell], ['prompt', promptCell],
  ['why', whyCell], ['answer', answerCell], ['first token', (one) => [duration(one.first_token_ms)]],
  ['took', (one) => [duration(one.total_ms)]],
];

const rows = new Map();  // by the request's id
const fewRequests = 12;
let showsAll = false;

class Row {
  constructor() {
    this.item = element('tr');
    this.item.setAttribute('role', 'row');
    this.cells = columns.map(([name]) => {
      const cell = element('td');
      cell.setAttribute('role', 'cell');
      cell.dataset.label = name;
      this.item.append(cell);
      return cell;
    });
    this.seen = [];
  }

  // What did not change stays as it is, so that its text can be selected.
  update(one) {
    columns.forEach(([, draw], i) => {
      const made = element('div');
      made.append(...draw(one));
      if (this.seen[i] === made.innerHTML) return;
      this.seen[i] = made.innerHTML;
      this.cells[i].classList.toggle('none', made.textContent === '–');
      this.cells[i].replaceChildren(...made.childNodes);
    });
  }
}

export function drawRequests(state) {
  const all = [...state.running.slice().reverse(), ...state.ended.slice().reverse()];
  const shown = showsAll ? all : all.slice(0, fewRequests);
  const body = byId('ended').tBodies[0];
  const left = new Set(rows.keys());
  shown.forEach((one, i) => {
    if (!rows.has(one.id)) rows.set(one.id, new Row());
    const row = rows.get(one.id);
    left.delete(one.id);
    row.update(one);
    if (body.rows[i] !== row.item) body.insertBefore(row.item, body.rows[i] || null);
  });
  for (const id of left) {
    rows.get(id).item.remove();
    rows.delete(id);
  }
  byId('ended').hidden = all.length === 0;
  byId('no-requests').hidden = all.length > 0;
  const more = byId('more-requests');
  more.hidden = all.length <= fewRequests;
  setText(more, showsAll ? 'Show fewer' : `Show all ${all.length}`);
  more.onclick = () => {
    showsAll = !showsAll;
    drawRequests(state);
  };
}
