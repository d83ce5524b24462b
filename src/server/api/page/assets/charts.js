// Rates and bytes of the last minutes, as lines with axes.
import {byId, element, number, setText} from './texts.js';

const shownSeconds = 180;
const height = 116, top = 8, bottom = 22, left = 52, right = 8;
const tierNames = ['live', 'memory', 'disk', 'remote'];

const charts = [
  {id: 'rate', title: 'tokens generated per second', lines: [['generated', 'generated']]},
  {id: 'reuse', title: 'prompt tokens per second', lines: [['reused', 'cached'], ['computed', 'computed']]},
  {id: 'tiers', title: 'memory and stores, MiB', lines: tierNames.map((name) => [name, `tier-${name}`])},
];

const history = [];
let before = null;

// The clock is the browser's: those of models differ. A gap in time is a gap in the lines.
function remember(totals, tiers) {
  const at = performance.now() / 1000;
  if (before) {
    const seconds = Math.max(at - before.at, 0.05);
    const rate = (name) => Math.max(totals[name] - before.totals[name], 0) / seconds;
    const values = {generated: rate('generated_tokens'), reused: rate('reused_tokens'), computed: rate('computed_tokens')};
    for (const name of tierNames) if (name in tiers) values[name] = tiers[name] / 2 ** 20;
    history.push({at, begins: before.fresh, values});
    while (history[0].at < at - shownSeconds) history.shift();
    setText(byId('rate'), number(values.generated));
  }
  before = {at, totals, fresh: before === null};
}

export function forgetRates() {
  before = null;
}

// Returns the least of 1, 2 and 5 times a power of ten that is at least `value`.
function niceCeiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((factor) => factor * power).find((nice) => nice >= value * 0.999);
}

function makeSvg(tag, attributes, text) {
  const made = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function drawAxes(svg, width, most) {
  const y = (value) => height - bottom - value / most * (height - top - bottom);
  for (const value of [0, most / 2, most]) {
    svg.append(makeSvg('line', {class: value ? 'grid' : 'axis', x1: left, x2: width - right, y1: y(value), y2: y(value)}),
        makeSvg('text', {x: left - 6, y: y(value) + 4, 'text-anchor': 'end'},
            value.toLocaleString('en', {maximumFractionDigits: 1})));
  }
  svg.append(makeSvg('line', {class: 'axis', x1: left, x2: left, y1: top, y2: height - bottom}));
  for (const minutes of [3, 2, 1, 0]) {
    const x = width - right - minutes * 60 / shownSeconds * (width - left - right);
    const anchor = minutes === 3 ? 'start' : minutes === 0 ? 'end' : 'middle';
    svg.append(makeSvg('line', {class: 'axis', x1: x, x2: x, y1: height - bottom, y2: height - bottom + 4}),
        makeSvg('text', {x, y: height - 6, 'text-anchor': anchor}, minutes ? `${minutes} min ago` : 'now'));
  }
}

function drawLine(svg, width, most, name, colour) {
  const now = history.at(-1).at;
  let path = '';
  let last = null;
  for (const point of history) {
    if (!(name in point.values)) continue;
    const x = width - right - (now - point.at) / shownSeconds * (width - left - right);
    const y = height - bottom - point.values[name] / most * (height - top - bottom);
    path += `${path && !point.begins ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    last = {x, y};
  }
  if (!last) return;
  svg.append(makeSvg('path', {d: path, class: `line-${colour}`}),
      makeSvg('circle', {cx: last.x.toFixed(1), cy: last.y.toFixed(1), r: 2.5, class: `dot-${colour}`}));
}

function drawLegend(list, lines, shown) {
  list.replaceChildren(...lines.map(([name, colour]) => {
    const item = element('li');
    const sample = makeSvg('svg', {class: 'sample', viewBox: '0 0 22 10', 'aria-hidden': 'true'});
    sample.append(makeSvg('path', {d: 'M1 5L21 5', class: `line-${colour}`}));
    item.append(sample, element('span', '', `${name} ${shown(name)}`));
    return item;
  }));
}

function figureOf(chart) {
  const found = byId(`chart-${chart.id}`);
  if (found) return found;
  const figure = element('figure');
  const svg = makeSvg('svg', {id: `chart-${chart.id}`, role: 'img', class: 'chart'});
  const legend = element('ul', 'legend');
  legend.id = `key-${chart.id}`;
  figure.append(element('figcaption', '', chart.title), svg, legend);
  byId('charts').append(figure);
  return svg;
}

function drawChart(chart) {
  const svg = figureOf(chart);
  const lines = chart.lines.filter(([name]) => history.some((point) => name in point.values));
  const values = history.flatMap((point) => lines.map(([name]) => point.values[name] ?? 0));
  const most = niceCeiling(Math.max(1, ...values));
  const width = Math.max(svg.clientWidth, 200);
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.replaceChildren();
  drawAxes(svg, width, most);
  for (const [name, colour] of lines) drawLine(svg, width, most, name, colour);
  const value = (name) => (history.at(-1).values[name] ?? 0).toLocaleString('en', {maximumFractionDigits: 1});
  const text = lines.map(([name]) => `${name} ${value(name)}`).join(', ');
  svg.setAttribute('aria-label', `${chart.title}, now: ${text || 'not known yet'}`);
  drawLegend(byId(`key-${chart.id}`), lines, value);
}

export function drawCharts(state) {
  byId('time-section').hidden = !state.totals;
  if (!state.totals) return forgetRates();
  remember(state.totals, state.tier_bytes);
  charts.forEach(drawChart);
}
