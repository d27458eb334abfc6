// Where in the network: S1 and S2 by layer, and the share that is gone.
function mountLayers() {
  if (!HAS_TABLES || !RUNS.some((run) => run.where.score !== 'em')) return;
  const body = section('layers');
  const draw = () => {
    const run = current.run();
    if (!run || run.where.score === 'em') { body.replaceChildren(h('p', { class: 'muted' }, 'This run has no deltas: see Exact match.')); return; }
    body.replaceChildren(h('div', { class: 'card' },
      key(marker(css('--s1'), 'S1: retain patched in'), marker(css('--s2'), ['S2: ', bdi(short(run.label, 60)), ' patched in']), marker('color-mix(in srgb, var(--s2) 16%, var(--card))', 'still held')),
      layerFigure(run, widthOf(body) - 42), layerWords(run)));
  };
  state.on(['settings', 'model', 'theme'], draw);
  addEventListener('resize', draw);
  draw();
}

// Over all examples; where S2 was computed at KE layers only, both over the examples that have one.
const partial = (profile) => profile.s2.some((value) => !Number.isFinite(value));
function means(profile) {
  const [s1, s2] = partial(profile) ? [profile.s1_ke, profile.s2_ke] : [profile.s1, profile.s2];
  return { s1: s1.map((value) => value ?? NaN), s2: s2.map((value) => value ?? NaN) };
}

// What is still held, per layer: s1 times (1 - erasure), over the examples that S1's mean is over.
function heldBelow(run) {
  const { s1, erasure } = tables(run);
  const { layers, examples } = run.where;
  return layers.map((_, layer) => {
    const cells = examples.map((__, row) => row * layers.length + layer).filter((cell) => Number.isFinite(erasure[cell]));
    const held = cells.reduce((sum, cell) => sum + s1[cell] * (1 - erasure[cell]), 0);
    return held / (partial(run.profile) ? cells.length : examples.length);
  });
}

function layerFigure(run, width) {
  const { layers } = run.where;
  const { s1, s2 } = means(run.profile);
  const { n_ke: nKe, erasure } = run.profile;
  const top = Math.max(0.1, ...[...s1, ...s2].filter(Number.isFinite));
  const low = Math.min(0, ...[...s1, ...s2].filter(Number.isFinite));
  const [left, right, up, down, foot] = [52, 12, 16, 268, 352];
  const x = linear(-0.5, layers.length - 0.5, left, width - right);
  const y = linear(low, top * 1.04, down, up);
  const wide = (x(1) - x(0)) * 0.72;
  const held = layers.map((_, at) => [x(at), y(s1[at])]).filter(([, b]) => Number.isFinite(b));
  const below = heldBelow(run);
  const reached = layers.map((_, at) => [x(at), y(s1[at] - below[at])]).filter(([, b]) => Number.isFinite(b));
  const table = ramp('erasure');
  const e = linear(0, 1, foot, foot - 48);
  const n = run.where.examples.length;
  return canvas(width, foot + 42, `S1 and S2 of ${run.label} by layer`,
    yAxis(ticks(low, top, 4), y, left, width - right),
    g('text', { x: left - 44, y: up - 4 }, 'nats per token'),
    g('path', { d: `${path(held)}${path([...reached].reverse()).replace('M', 'L')}Z`, fill: css('--s2'), opacity: .13 }),
    g('path', { d: path(layers.map((_, at) => [x(at), y(s1[at])])), fill: 'none', stroke: css('--s1'), 'stroke-width': 2.5, 'stroke-linejoin': 'round' }),
    g('path', { d: path(layers.map((_, at) => [x(at), y(s2[at])])), fill: 'none', stroke: css('--s2'), 'stroke-width': 2.5, 'stroke-linejoin': 'round' }),
    layers.map((_, at) => [
      Number.isFinite(s1[at]) && g('circle', { class: 'dot', cx: x(at), cy: y(s1[at]), r: 4, fill: css('--s1') }),
      Number.isFinite(s2[at]) && g('circle', { class: 'dot', cx: x(at), cy: y(s2[at]), r: 4, fill: css('--s2') }),
    ]),
    g('text', { x: left - 44, y: foot - 54 }, 'erasure'),
    layers.map((layer, at) => [
      g('rect', { x: x(at) - wide / 2, y: e(1), width: wide, height: 48, rx: 3, fill: css('--none'), opacity: .6 }),
      Number.isFinite(erasure[at]) && g('rect', { x: x(at) - wide / 2, y: e(Math.max(erasure[at], .02)), width: wide, height: e(0) - e(Math.max(erasure[at], .02)), rx: 3, fill: shade(table, erasure[at]) }),
      g('text', { x: x(at), y: foot + 17, 'text-anchor': 'middle' }, layer),
      hover(g('rect', { class: 'hit', x: x(at) - wide / 2 / .72, y: up, width: wide / .72, height: foot - up }), () => [
        h('b', {}, `layer ${layer}`), h('span', { class: 'row' }, `S1 ${fmt(s1[at])} · S2 ${fmt(s2[at])} nats · erasure ${fmt(erasure[at], 2)} · encodes the fact in ${nKe[at]} of ${n}`)]),
    ]),
    g('text', { x: (left + width - right) / 2, y: foot + 36, 'text-anchor': 'middle' }, 'layer whose residual stream is replaced'));
}

function layerWords(run) {
  const { erasure, n_ke: nKe } = run.profile;
  const { layers } = run.where;
  const there = layers.map((layer, at) => [layer, erasure[at], nKe[at]]).filter(([, value, count]) => Number.isFinite(value) && count > 0);
  if (!there.length) return h('figcaption', {}, 'No layer encodes any of the facts.');
  const half = there.filter(([, value]) => value >= 0.5).map(([layer]) => layer);
  const [first] = there;
  const say = half.length === 0 ? 'At no layer is more than half of it gone.'
    : half.length === there.length ? 'At every layer more than half of it is gone.'
      : `More than half of it is gone at ${half.length} of ${there.length} layers (${ranges(half)}).`;
  const limited = partial(run.profile) ? ' S2 was computed at KE layers only: both lines are means over the examples that the layer encodes.' : '';
  return h('figcaption', {}, `The facts are encoded from layer ${first[0]} on. ${say}${limited}`);
}

// 3, 4, 5, 9 as "3–5, 9".
function ranges(values) {
  const runs = [];
  for (const value of values) {
    const last = runs.at(-1);
    if (last && value === last[1] + 1) last[1] = value; else runs.push([value, value]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}–${b}`)).join(', ');
}
