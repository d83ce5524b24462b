// The numbers at the top, and memory beside its budget.
import {byId, bytes, element, number, setText} from './texts.js';

function drawNumbers(totals, memory) {
  const prompts = totals.reused_tokens + totals.computed_tokens;
  const share = prompts > 0 ? Math.round(100 * totals.reused_tokens / prompts) : 0;
  setText(byId('reused'), `${number(totals.reused_tokens)} (${share}%)`);
  const live = memory.filter(({tier}) => tier === 'live');
  const budget = live.length === 1 ? live[0].budget_bytes : 0;
  setText(byId('held'), bytes(totals.held_bytes));
  setText(byId('budget'), budget > 0 ? `of ${bytes(budget)}` : '');
  setText(byId('prefix-tokens'), `${number(totals.prefix_tokens)} tokens`);
  setText(byId('evicted'), `${number(totals.evicted_tokens)} tokens`);
  setText(byId('running'), number(totals.running - totals.waiting));
  setText(byId('waiting'), number(totals.waiting));
  setText(byId('parked'), number(totals.parked));
}

const tierNames = {live: 'live', memory: 'store in memory', disk: 'store on disk', remote: 'store in the network'};

function drawMeter(memory) {
  const {tier, model, held_bytes: held, budget_bytes: budget} = memory;
  const row = element('div', 'row');
  const name = model ? `${tierNames[tier]}: keys and values of ${model}` : tierNames[tier];
  const of = budget > 0 ? `${bytes(held)} of ${bytes(budget)}` : `${bytes(held)}, no budget`;
  const what = element('div', 'what');
  what.append(element('span', '', name), element('span', 'strong', of));
  row.append(what);
  if (budget > 0) {
    const meter = element('div', 'meter');
    meter.setAttribute('role', 'meter');
    meter.setAttribute('aria-label', name);
    meter.setAttribute('aria-valuemin', 0);
    meter.setAttribute('aria-valuemax', budget);
    meter.setAttribute('aria-valuenow', Math.min(held, budget));
    meter.setAttribute('aria-valuetext', of);
    const bar = element('span', `bar tier-${tier}`);
    bar.style.width = `${Math.min(100 * held / budget, 100)}%`;
    meter.append(bar);
    row.append(meter);
  }
  const evicted = tier === 'live' ? `${number(memory.evicted_tokens)} tokens` : `${number(memory.evicted_objects)} objects`;
  row.append(element('div', 'soft', `evicted: ${evicted}`));
  return row;
}

export function drawFigures(state) {
  const {totals, memory} = state;
  byId('figures').hidden = byId('memory-section').hidden = !totals;
  if (!totals) return;
  drawNumbers(totals, memory);
  const seen = JSON.stringify(memory);
  const list = byId('memory');
  if (list.dataset.seen === seen) return;
  list.dataset.seen = seen;
  list.replaceChildren(...memory.map(drawMeter));
  if (memory.length === 0) list.append(element('p', 'empty', 'No model is loaded.'));
}
