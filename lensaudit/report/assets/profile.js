// Where in the network: S1 by layer, how far S2 reaches into it, and what is not erased between.
function mountLayers() {
  if (!HAS_TABLES || !RUNS.some((run) => run.where.score !== 'em')) return;
  const body = section('layers');
  const draw = () => {
    const run = current.run();
    if (!run || run.where.score === 'em') { body.replaceChildren(h('p', { class: 'muted' }, 'This run has no deltas: see Exact match.')); return; }
    body.replaceChildren(h('div', { class: 'card' },
      key(marker(css('--s1'), `S1: lost with ${anchorOf(run.where)} stream`), marker(css('--s2'), ['min(S2, S1): as much of it is lost with the stream of ', bdi(short(run.label, 60))]),
        marker('color-mix(in srgb, var(--s2) 22%, var(--card))', `between them: ${inside(run.where) ? 'held' : 'not erased'}`)),
      layerFigure(run, widthOf(body) - 42), layerWords(run)));
  };
  state.on(['settings', 'model', 'theme'], draw);
  addEventListener('resize', draw);
  draw();
}

// Where S2 was computed at KE layers only, means are over the examples that a layer encodes.
const partial = (profile) => profile.s2.some((value) => !Number.isFinite(value));
const spanWords = ([value, low, high]) => `${fmt(value)}${Number.isFinite(low) ? ` (${fmt(low)} to ${fmt(high)})` : ''}`;

function layerFigure(run, width) {
  const { layers } = run.where;
  const { s1, reached, held } = run.bands;
  const { n_ke: nKe, erasure } = run.profile;
  const there = [...s1, ...reached].flat().filter(Number.isFinite);
  const [low, top] = [Math.min(0, ...there), Math.max(0.1, ...there)];
  const [left, right, up, down, foot] = [52, 12, 16, 268, 352];
  const x = linear(-0.5, layers.length - 0.5, left, width - right);
  const y = linear(low, top * 1.04, down, up);
  const wide = (x(1) - x(0)) * 0.72;
  const points = (rows, part) => rows.map((row, at) => [x(at), y(row[part] ?? NaN)]);
  const solid = (rows) => points(rows, 0).filter(([, value]) => Number.isFinite(value));
  const line = (rows, colour) => [
    [1, 2].map((part) => g('path', { class: 'limit', d: path(points(rows, part)), fill: 'none', stroke: colour, 'stroke-width': 1.2, 'stroke-dasharray': '2 3' })),
    g('path', { d: path(points(rows, 0)), fill: 'none', stroke: colour, 'stroke-width': 2.5, 'stroke-linejoin': 'round' }),
    solid(rows).map(([cx, cy]) => g('circle', { class: 'dot', cx, cy, r: 4, fill: colour }))];
  const table = ramp(rampOf(run.where));
  const [lost, kept] = inside(run.where) ? ['depth', 'held'] : ['erasure', 'not erased'];
  const e = linear(0, 1, foot, foot - 48);
  const n = run.where.examples.length;
  return canvas(width, foot + 42, `S1, and how far S2 of ${run.label} reaches into it, by layer`,
    yAxis(ticks(low, top, 4), y, left, width - right),
    g('text', { x: left - 44, y: up - 4 }, 'nats per token'),
    g('path', { class: 'held', d: `${path(solid(s1))}${path(solid(reached).reverse()).replace('M', 'L')}Z`, fill: css('--s2'), opacity: .2 }),
    line(s1, css('--s1')), line(reached, css('--s2')),
    g('text', { x: left - 44, y: foot - 54 }, lost),
    layers.map((layer, at) => [
      g('rect', { x: x(at) - wide / 2, y: e(1), width: wide, height: 48, rx: 3, fill: css('--none'), opacity: .6 }),
      Number.isFinite(erasure[at]) && g('rect', { x: x(at) - wide / 2, y: e(Math.max(erasure[at], .04)), width: wide, height: e(0) - e(Math.max(erasure[at], .04)), rx: 1, fill: shade(table, erasure[at]) }),
      (x(1) - x(0) > 17 || at % 2 === 0) && g('text', { x: x(at), y: foot + 17, 'text-anchor': 'middle' }, layer),
      hover(g('rect', { class: 'hit', x: x(at) - wide / 2 / .72, y: up, width: wide / .72, height: foot - up }), () => [
        h('b', {}, `layer ${layer}`), h('span', { class: 'row' }, `S1 ${spanWords(s1[at])} nats, reached ${spanWords(reached[at])}`, h('br'), `${kept} ${spanWords(held[at])}`, h('br'), `${lost} ${fmt(erasure[at], 2)} · encodes the fact in ${nKe[at]} of ${n}`)]),
    ]),
    g('line', { class: 'axis', x1: left, x2: width - right, y1: e(0), y2: e(0) }),
    g('text', { x: (left + width - right) / 2, y: foot + 36, 'text-anchor': 'middle' }, 'layer whose residual stream is replaced'));
}

function layerWords(run) {
  const { erasure, n_ke: nKe } = run.profile;
  const { layers } = run.where;
  const there = layers.map((layer, at) => [layer, erasure[at], nKe[at]]).filter(([, value, count]) => Number.isFinite(value) && count > 0);
  if (!there.length) return h('figcaption', {}, 'No layer encodes any of the facts.');
  const half = there.filter(([, value]) => value >= 0.5).map(([layer]) => layer);
  const [first] = there;
  const say = inside(run.where) ? `S2 reaches less than half of S1 at ${there.length - half.length} of ${there.length} layers; more than half shows nothing.` : half.length === 0 ? 'At no layer is more than half of it gone.'
    : half.length === there.length ? 'At every layer more than half of it is gone.'
      : `More than half of it is gone at ${half.length} of ${there.length} layers (${ranges(half)}).`;
  const limited = partial(run.profile) ? ' S2 was computed at KE layers only: both lines are means over the examples that the layer encodes.' : '';
  const [ends, unit] = [run.bands.held.some(([, low]) => Number.isFinite(low)), `${run.where.unit}s`];
  const band = ends ? ` Dotted: 95 % intervals of both means, by ${unit}.` : ` No interval: too few ${unit}; this describes these rows only.`;
  return h('figcaption', {}, `The shading is what is ${inside(run.where) ? 'held' : 'not erased'}: the part of S1 that S2 does not reach, example by example. The facts are encoded from layer ${first[0]} on. ${say}${band}${limited}`);
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
