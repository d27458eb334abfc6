// Example by layer: a canvas that draws what is in view, and the example under the cursor.
const VIEWS = { erasure: 'Erasure', s1: 'S1', s2: 'S2', difference: 'Difference', match: 'Exact match' };
const ROW = 21;

const heat = { rows: [], at: -1, column: 0, run: null, values: null };

function heatTable(run, view) {
  const table = tables(run);
  if (run.where.score === 'em' || view === 'match') {
    const em = run.where.score === 'em' ? run : emOf(run);
    return aligned(run, em, tables(em).s2);
  }
  if (view !== 'difference') return table[view] ?? table.erasure;
  const other = tables(current.other());
  return table.erasure.map((value, at) => value - other.erasure[at]);
}

// A table of another run in the order of this run's examples and layers.
function aligned(run, other, values) {
  const rows = run.where.examples.map((one) => rowOf(other.where, one));
  const width = other.where.layers.length;
  const columns = run.where.layers.map((layer) => other.where.layers.indexOf(layer));
  return Float32Array.from({ length: run.where.examples.length * columns.length }, (_, at) => {
    const row = rows[Math.floor(at / columns.length)];
    const column = columns[at % columns.length];
    return row === undefined || column < 0 ? NaN : values[row * width + column];
  });
}

function viewsOf(run) {
  if (run.where.score === 'em') return ['match'];
  return ['erasure', 's1', 's2', current.runs().length > 1 && 'difference', emOf(run) && 'match'].filter(Boolean);
}
const viewOf = (run) => (viewsOf(run).includes(state.get('heat')) ? state.get('heat') : viewsOf(run)[0]);

function orderedRows(run) {
  const { examples, layers } = run.where;
  const { scores, s1 } = tables(run);
  const wanted = state.get('find').toLowerCase();
  const kind = state.get('only');
  const keep = (at) => (!kind || wordOf(scores[at], run.where) === kind)
    && (!wanted || `${examples[at].idx} ${examples[at].question} ${examples[at].answer} ${examples[at].entity} ${authorOf(examples[at])}`.toLowerCase().includes(wanted));
  const rows = examples.map((_, at) => at).filter(keep);
  const order = state.get('order', 'score');
  const [by, back] = order.startsWith('-') ? [order.slice(1), -1] : [order, 1];
  const strength = (at) => Math.max(...s1.subarray(at * layers.length, (at + 1) * layers.length));
  const layer = by.startsWith('L') ? layers.indexOf(Number(by.slice(1))) : -1;
  const value = layer >= 0 ? (at) => heat.values[at * layers.length + layer]
    : { score: (at) => scores[at], idx: (at) => examples[at].idx, s1: strength, baseline: (at) => tables(run).baseline?.[at] ?? NaN }[by];
  const text = { author: (at) => examples[at].group, entity: (at) => examples[at].entity }[by];
  if (text) return rows.sort((a, b) => back * text(a).localeCompare(text(b), 'en', { numeric: true }) || a - b);
  if (!value) return rows;
  return rows.sort((a, b) => {
    const [x, y] = [value(a), value(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a - b;
    return back * (x - y) || a - b;
  });
}

function mountExamples() {
  if (!HAS_TABLES) return;
  const body = section('examples');
  const controls = h('div', { class: 'controls' });
  const head = h('div', { class: 'heat-head' });
  const canvasNode = h('canvas', { 'aria-hidden': 'true' });
  const space = h('div');
  const scroll = h('div', { class: 'heat-scroll', tabindex: '0', role: 'application', 'aria-roledescription': 'heat map', 'aria-label': 'Examples by layer; arrow keys move' }, canvasNode, space);
  const legend = h('div', { class: 'heat-legend' });
  const detail = h('aside', { class: 'card detail', 'aria-live': 'polite' });
  body.append(controls, h('div', { class: 'heat' }, h('div', { class: 'heat-box' }, head, scroll, legend), detail));
  const part = { controls, head, canvas: canvasNode, space, scroll, legend, detail };

  const draw = () => drawHeat(part);
  const recompute = () => {
    heat.run = current.run();
    heat.values = heatTable(heat.run, viewOf(heat.run));
    heat.rows = orderedRows(heat.run);
    const kept = heat.rows.indexOf(place(heat.run.where).get(Number(state.get('example', 'NaN'))));
    // no example is asked for: the one in the middle, where both ends of the scale are near
    const unasked = !state.get('example') && !state.get('find') && !state.get('only') && !state.get('order');
    heat.at = kept >= 0 ? kept : unasked ? Math.floor(heat.rows.length / 2) : 0;
    part.scroll.style.height = heat.rows.length <= 50 ? `${Math.max(3, heat.rows.length) * ROW}px` : '';
    drawHeatHead(part);
    draw();
    reveal(part);
    drawDetail(part.detail);
    const count = $('.count', controls);
    if (count) count.textContent = `${heat.rows.length} of ${heat.run.where.examples.length} examples`;
  };
  const restart = () => { drawHeatControls(controls); recompute(); };
  state.on(['settings', 'model', 'with', 'heat', 'order', 'only', 'dense', 'theme'], restart);
  state.on(['find'], recompute);
  state.on(['example'], () => {
    const at = heat.rows.indexOf(place(heat.run.where).get(Number(state.get('example', 'NaN'))));
    if (at >= 0 && at !== heat.at) { heat.at = at; reveal(part); }
    draw();
    drawDetail(detail);
  });
  scroll.addEventListener('scroll', draw);
  scroll.addEventListener('keydown', (event) => heatKey(event, part, draw));
  canvasNode.addEventListener('pointermove', (event) => heatTip(event, part));
  canvasNode.addEventListener('pointerleave', tip.hide);
  canvasNode.addEventListener('click', (event) => {
    const [at, column] = under(event, part);
    if (at < 0) return;
    heat.column = Math.max(0, column);
    keep(at);
    draw();
  });
  addEventListener('resize', () => { drawHeatHead(part); draw(); });
  restart();
}

const keep = (at) => {
  heat.at = at;
  state.set({ example: heat.run.where.examples[heat.rows[at]].idx });
};

function drawHeatControls(controls) {
  const run = current.run();
  const layers = run.where.layers.map((layer) => [`-L${layer}`, `layer ${layer}, highest first`]);
  const orders = [['score', 'most held first'], ['-score', 'least held first'], ['idx', 'number'], ...(run.where.unit === 'author' ? [['author', 'author']] : []), ['entity', 'entity'], ['-s1', 'best known first'], ...layers, ...layers.map(([id]) => [id.slice(1), `layer ${id.slice(2)}, lowest first`])];
  refocus(controls, ...[
    h('input', { type: 'search', placeholder: 'Find in questions and facts', 'aria-label': 'Find examples', value: state.get('find'), oninput: (event) => state.set({ find: event.target.value }) }),
    viewsOf(run).length > 1 && segments('what the colour shows', viewsOf(run).map((view) => [view, view === 'erasure' && inside(run.where) ? 'Depth' : VIEWS[view]]), viewOf(run), (view) => state.set({ heat: view })),
    choice('order', orders, state.get('order', 'score'), (order) => state.set({ order })),
    run.where.score !== 'em' && choice('show', [['', 'all'], ['hidden', 'hidden'], ...(inside(run.where) ? [['no verdict', 'all others']] : [['partly erased', 'partly erased'], ['erased', 'erased'], ['no verdict', 'unscored']])], state.get('only'), (only) => state.set({ only })),
    segments('row height', [['', 'read'], ['1', 'overview']], state.get('dense'), (dense) => state.set({ dense })),
    h('span', { class: 'count', 'aria-live': 'polite' }),
  ].filter(Boolean));
}

// Where things are: label, cells, bar.
function geometry({ scroll }) {
  const width = scroll.clientWidth;
  const height = scroll.clientHeight;
  const dense = state.get('dense') === '1';
  const row = dense ? clamp(height / Math.max(1, heat.rows.length), 1.5, ROW) : ROW;
  const label = dense ? 12 : clamp(width * 0.27, 90, 230);
  const bar = dense ? 12 : 66;
  const cell = (width - label - bar) / heat.run.where.layers.length;
  return { width, height, row, label, bar, cell, dense };
}

function drawHeatHead(part) {
  const { label, cell, width, bar, dense } = geometry(part);
  const order = state.get('order', 'score');
  refocus(part.head, ...[
    !dense && h('span', { class: 'side', style: { left: '.8rem' } }, 'fact'),
    ...heat.run.where.layers.map((layer, at) => button(cell < 15 && at % 2 ? '' : layer, () => state.set({ order: order === `L${layer}` ? `-L${layer}` : `L${layer}` }), {
      'aria-label': `sort by layer ${layer}`, 'data-layer': layer, 'aria-pressed': String(order.replace('-', '') === `L${layer}`),
      style: { left: `${label + at * cell}px`, width: `${cell}px` },
    })),
    !dense && h('span', { class: 'side', style: { left: `${width - bar + 10}px` } }, SCORE_NAMES[heat.run.where.score]),
  ].filter(Boolean));
  const name = { erasure: 'erasure', s1: 'delta', s2: 'delta', difference: 'difference', match: 'match' }[viewOf(heat.run)];
  const [from, to] = { erasure: ['still held', inside(heat.run.where) ? 'shows nothing' : 'erased'], delta: ['0', `${brief(spread())} nats`], difference: [short(current.other()?.label ?? '', 18), short(heat.run.label, 18)], match: ['lost', 'still said'] }[name];
  part.legend.replaceChildren(...[
    h('span', {}, name === 'difference' ? `more erased in ${from}` : from), h('span', { class: 'bar', style: { background: gradient(name === 'erasure' ? rampOf(heat.run.where) : name) } }), h('span', {}, to),
    h('span', { class: 'none' }), h('span', {}, name === 'erasure' || name === 'difference' ? 'layer does not encode the fact' : 'not computed')]);
}

// The largest delta that is no outlier.
function spread() {
  const there = heat.values.filter(Number.isFinite).sort();
  return Math.max(0.05, there[Math.floor(there.length * 0.98)] ?? 1);
}

function drawHeat(part) {
  const { width, height, row, label, bar, cell, dense } = geometry(part);
  const scale = devicePixelRatio || 1;
  const node = part.canvas;
  node.width = width * scale;
  node.height = height * scale;
  node.style.width = `${width}px`;
  node.style.height = `${height}px`;
  part.space.style.height = `${Math.max(0, heat.rows.length * row - height)}px`;
  const pen = node.getContext('2d');
  pen.scale(scale, scale);
  const { examples, layers } = heat.run.where;
  const { scores } = tables(heat.run);
  const view = viewOf(heat.run);
  const table = ramp({ erasure: rampOf(heat.run.where), match: 'match', difference: 'difference' }[view] ?? 'delta');
  const top = view === 's1' || view === 's2' ? spread() : 1;
  const share = view === 'difference' ? (v) => (v + 1) / 2 : (v) => v / top;
  const [ink, muted, none, faint, focus] = ['--ink', '--muted', '--none', '--faint', '--focus'].map(css);
  const gap = dense ? (row > 5 ? 1 : 0) : 1.5;
  pen.font = '12.5px ui-sans-serif, system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
  pen.textBaseline = 'middle';
  const from = Math.floor(part.scroll.scrollTop / row);
  for (let at = from; at < Math.min(heat.rows.length, from + height / row + 2); at += 1) {
    const which = heat.rows[at];
    const y = at * row - part.scroll.scrollTop;
    if (at === heat.at) { pen.fillStyle = faint; pen.fillRect(0, y, width, row); }
    for (let column = 0; column < layers.length; column += 1) {
      const value = heat.values[which * layers.length + column];
      pen.fillStyle = Number.isFinite(value) ? shade(table, share(value)) : none;
      pen.fillRect(label + column * cell, y + gap / 2, cell - (cell > 6 ? 1.5 : 0), row - gap);
    }
    if (dense) continue;
    pen.fillStyle = ink;
    pen.fillText(fitted(pen, examples[which].entity || examples[which].question || `idx ${examples[which].idx}`, label - 24), 13, y + row / 2);
    const value = scores[which];
    pen.fillStyle = Number.isFinite(value) ? (heat.run.where.score === 'em' ? ink : wordColour(value, heat.run.where)) : muted;
    pen.fillText(Number.isFinite(value) ? fmt(value) : 'unscored', width - bar + 10, y + row / 2);
  }
  if (heat.at >= 0 && heat.rows.length) {
    const y = heat.at * row - part.scroll.scrollTop;
    pen.strokeStyle = focus;
    pen.lineWidth = 1.5;
    pen.strokeRect(label - 1, y, cell * layers.length + 1, Math.max(row, 3));
    if (document.activeElement === part.scroll) pen.strokeRect(label + heat.column * cell, y + 1, cell - 1.5, row - 2);
  }
}

function fitted(pen, text, width) {
  if (text.length < 6 || pen.measureText(text.slice(0, 200)).width <= width) return text.slice(0, 200);
  let letters = Math.min(text.length, 80);
  while (letters > 1 && pen.measureText(`${text.slice(0, letters)}…`).width > width) letters -= 1;
  return `${text.slice(0, letters)}…`;
}

function under(event, part) {
  const { row, label, cell } = geometry(part);
  const box = part.canvas.getBoundingClientRect();
  const at = Math.floor((event.clientY - box.top + part.scroll.scrollTop) / row);
  const column = Math.floor((event.clientX - box.left - label) / cell);
  return [at >= 0 && at < heat.rows.length ? at : -1, column < heat.run.where.layers.length ? column : -1];
}

function heatTip(event, part) {
  const [at, column] = under(event, part);
  if (at < 0) { tip.hide(); return; }
  tip.show(event, tipLines(heat.rows[at], column));
}

function tipLines(which, column) {
  const { examples, layers } = heat.run.where;
  const one = examples[which];
  const { s1, s2, erasure } = tables(heat.run);
  const cell = which * layers.length + column;
  const em = heat.run.where.score === 'em';
  return [
    h('b', {}, bdi(short(one.question || `idx ${one.idx}`, 220))),
    one.entity && h('span', { class: 'row' }, 'fact: ', bdi(short(one.entity, 120)), h('br')),
    column >= 0 && h('span', { class: 'row' }, em
      ? `layer ${layers[column]}: match ${fmt(s1[cell], 2)} with retain, ${fmt(s2[cell], 2)} with this model`
      : `layer ${layers[column]}: S1 ${fmt(s1[cell])}, S2 ${fmt(s2[cell])} nats, ${Number.isFinite(erasure[cell]) ? `${inside(heat.run.where) ? 'depth' : 'erasure'} ${fmt(erasure[cell], 2)}` : 'does not encode it'}`),
  ];
}

function heatKey(event, part, draw) {
  const page = Math.max(1, Math.floor(part.scroll.clientHeight / ROW) - 1);
  const last = heat.rows.length - 1;
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  const sides = { ArrowLeft: -1, ArrowRight: 1 };
  if (event.key in moves) heat.at = clamp(heat.at + moves[event.key], 0, Math.max(0, last));
  else if (event.key in sides) heat.column = clamp(heat.column + sides[event.key], 0, heat.run.where.layers.length - 1);
  else if (event.key === 'Enter' && last >= 0) keep(heat.at);
  else return;
  event.preventDefault();
  reveal(part);
  draw();
  drawDetail(part.detail);
}

function reveal(part) {
  const { row, height } = geometry(part);
  const y = heat.at * row;
  if (y < part.scroll.scrollTop || y + row > part.scroll.scrollTop + height) part.scroll.scrollTop = y - (height - row) / 2;
}
