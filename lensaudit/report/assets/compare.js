// Two models on the same examples, and all models at once.
function mountCompare() {
  const axes = axesThere();
  if (!CONDITIONS.some((one) => runsOf(one).length > 1)) return;
  const body = section('compare');
  const two = h('div');
  const all = h('div');
  body.append(two, all);
  const drawTwo = () => {
    const [run, other] = [current.run(), current.other()];
    refocus(two, ...((HAS_TABLES && run && other ? pairFigure(run, other, widthOf(body)) : [current.runs().length < 2 && h('p', { class: 'muted' }, 'Only one model was scored under these settings.')].filter(Boolean))));
  };
  const drawAll = () => refocus(all, ...crowdFigure(axes, widthOf(body)));
  state.on(['settings', 'model', 'with', 'theme'], drawTwo);
  state.on(['settings', 'model', 'with', 'theme', 'view', 'x', 'y', 'method', 'epoch', 'q'], drawAll);
  addEventListener('resize', () => { drawTwo(); drawAll(); });
  drawTwo();
  drawAll();
}

function pairFigure(run, other, width) {
  const runs = byScore(current.runs());
  const options = (not) => runs.filter((one) => one !== not).map((one) => [one.label, one.label]);
  const half = width > 860 ? (width - 90) / 2 : width - 42;
  const common = paired(run, other);
  return [
    h('div', { class: 'controls' },
      choice('', options(other), run.label, (label) => state.set({ model: label })), h('span', { class: 'muted' }, 'against'),
      choice('', options(run), other.label, (label) => state.set({ with: label })),
      button('swap', () => state.set({ model: other.label, with: run.label }))),
    h('p', { class: 'lede' }, differenceWords(run, other, common)),
    h('div', { class: 'pair' },
      h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, run.where.score === 'em' ? 'Share still said, by layer' : inside(run.where) ? 'Depth by layer' : 'Erasure by layer'), layerPair(run, other, half)),
      h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, `${SCORE_NAMES[run.where.score]} of each example`), scatterPair(run, other, common, half))),
  ];
}

// Places of the examples that both score; the same condition has the same examples.
function paired(run, other) {
  const [a, b] = [tables(run).scores, tables(other).scores];
  return [...a.keys()].filter((at) => Number.isFinite(a[at]) && Number.isFinite(b[at]));
}

function differenceWords(run, other, common) {
  const [a, b] = [tables(run).scores, tables(other).scores];
  if (!common.length) return 'No example is scored by both.';
  const known = DATA.pairs.find((one) => [one.a, one.b].includes(run.at) && [one.a, one.b].includes(other.at));
  const difference = mean(common.map((at) => a[at] - b[at]));
  const sign = known && known.a === run.at ? 1 : -1;
  const ends = known && Number.isFinite(known.low) && [sign * known.low, sign * known.high].sort((x, y) => x - y);
  const signed = (value) => `${value < 0 ? '−' : '+'}${fmt(Math.abs(value))}`;
  const more = common.filter((at) => a[at] > b[at] + 1e-6).length;
  return [bdi(run.label), ' minus ', bdi(other.label), ': ', h('b', {}, signed(difference)),
    ends ? ` (95 % interval ${signed(ends[0])} to ${signed(ends[1])}, by ${run.where.unit}s)` : known?.why ? ` (${known.why}; this describes these rows only)` : ' (for an interval make a page of these two alone)',
    ` on the ${common.length} examples that both score; ${inside(run.where) ? 'deeper' : 'more erased'} in the first on ${more}, in the second on ${common.filter((at) => a[at] < b[at] - 1e-6).length}.`];
}

function layerPair(run, other, width) {
  const { layers } = run.where;
  const field = run.where.score === 'em' ? 's2_em' : 'erasure';
  const [one, two] = [run.profile[field] ?? [], other.profile[field] ?? []];
  const x = linear(-0.5, layers.length - 0.5, 40, width - 4);
  const y = linear(0, 1, 226, 12);
  const line = (values, colour) => [
    g('path', { d: path(layers.map((_, at) => [x(at), y(values[at] ?? NaN)])), fill: 'none', stroke: colour, 'stroke-width': 2.5 }),
    layers.map((_, at) => Number.isFinite(values[at]) && g('circle', { class: 'dot', cx: x(at), cy: y(values[at]), r: 4, fill: colour }))];
  return h('div', {}, canvas(width, 262, 'both models by layer', yAxis([0, 0.25, 0.5, 0.75, 1], y, 40, width),
    layers.map((_, at) => Number.isFinite(one[at]) && Number.isFinite(two[at]) && g('line', { x1: x(at), x2: x(at), y1: y(one[at]), y2: y(two[at]), stroke: css('--line'), 'stroke-width': 6, 'stroke-linecap': 'round' })),
    line(two, css('--s1')), line(one, css('--accent')),
    layers.map((layer, at) => [g('text', { x: x(at), y: 244, 'text-anchor': 'middle' }, layer),
      hover(g('rect', { class: 'hit', x: x(at) - 12, y: 8, width: 24, height: 220 }), () => [h('b', {}, `layer ${layer}`), h('span', { class: 'row' }, bdi(run.label), ` ${fmt(one[at], 2)} · `, bdi(other.label), ` ${fmt(two[at], 2)}`)])]),
    ), key(marker(css('--accent'), run.label), marker(css('--s1'), other.label)));
}

function scatterPair(run, other, common, width) {
  const [a, b] = [tables(run).scores, tables(other).scores];
  const height = 262;
  const x = linear(0, 1, 44, width - 10);
  const y = linear(0, 1, 222, 12);
  const { examples } = run.where;
  return canvas(width, height + 8, 'score of each example under both models', yAxis([0, 0.5, 1], y, 44, width - 10),
    [0, 0.5, 1].map((value) => g('text', { x: x(value), y: 240, 'text-anchor': 'middle' }, value)),
    g('line', { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: 'grid' }),
    common.map((at) => hover(g('circle', { class: 'dot', cx: x(b[at]), cy: y(a[at]), r: 4.4, fill: shade(ramp('difference'), (a[at] - b[at] + 1) / 2), style: { stroke: css('--muted'), 'stroke-width': '.7', cursor: 'pointer' },
      onclick: () => { state.set({ find: '', only: '', example: examples[at].idx }); document.getElementById('examples').scrollIntoView(); } }),
    () => [h('b', {}, bdi(short(examples[at].question || `idx ${examples[at].idx}`, 200))), h('span', { class: 'row' }, `${fmt(a[at])} against ${fmt(b[at])}`)])),
    g('text', { x: (width + 34) / 2, y: 262, 'text-anchor': 'middle' }, short(other.label, 40)),
    g('text', { x: 12, y: 117, 'text-anchor': 'middle', transform: 'rotate(-90 12 117)' }, short(run.label, 30)));
}

// What a model can be placed by: its scores and its metrics.
function axesThere() {
  const score = RUNS.some((run) => Number.isFinite(run.value)) ? [{ id: 'score', title: 'score', read: (model) => runFor(model)?.value ?? (isAnchor(model) ? calibrated(current.condition(), model.role) : NaN), ends: (model) => { const run = runFor(model); return [run?.low, run?.high]; } }] : [];
  const metrics = DATA.metric_kinds.filter((kind) => (HAS_TABLES || kind.name !== 'uds') && MODELS.filter((model) => Number.isFinite(metricOf(model, kind.name))).length > 1)
    .map((kind) => ({ id: kind.name, title: kind.name.replaceAll('_', ' '), read: (model) => metricOf(model, kind.name), ends: (model) => (model.metrics[kind.name] ?? []).slice(1, 3) }));
  return [...score, ...metrics];
}
const runFor = (model) => current.runs().find((run) => run.info === model);

function crowdFigure(axes, width) {
  const models = filtered().map((run) => run.info).filter((model) => !isAnchor(model));
  const condition = current.condition();
  const byLayer = condition.layers.map((layer, at) => ({ id: `layer ${layer}`, title: `${layer}`, range: [0, 1], read: (model) => (runFor(model)?.profile[condition.score === 'em' ? 's2_em' : 'erasure'] ?? [])[at] ?? NaN }));
  const metric = preferred(axes);
  const views = [metric.length > 1 && ['scatter', 'scatter'], metric.length > 2 && ['metrics', 'by metric'], byLayer.length > 1 && ['layers', 'by layer']].filter(Boolean);
  if (models.length < 3 || !views.length) return [];
  const wanted = state.get('view', views[0][0]);
  const view = views.some(([id]) => id === wanted) ? wanted : views[0][0];
  const named = (id, otherwise) => axes.find((one) => one.id === state.get(id)) ?? otherwise;
  const [x, y] = [named('x', metric[1] ?? metric[0]), named('y', metric[0])];
  const differ = [...new Set(models.flatMap((model) => askedOtherwise(model, models.find((one) => Object.keys(asked(one)).length) ?? model)))];
  const pick = (id, label, value) => choice(label, axes.map((one) => [one.id, axisTitle(one)]), value.id, (one) => state.set({ [id]: one }));
  return [
    h('h3', {}, `All ${models.length} models`),
    h('div', { class: 'controls' }, views.length > 1 && segments('how to compare', views, view, (one) => state.set({ view: one })),
      view === 'scatter' && [pick('x', 'across', x), pick('y', 'up', y)], h('span', { class: 'count' }, METHODS.length > 1 ? METHODS.map((method) => marker(methodColour(method), `${method} `, { style: { 'margin-left': '.7rem' } })) : '')),
    h('div', { class: 'card' }, view === 'scatter' ? [scatterAll(models, x, y, width - 42), h('figcaption', {}, `◇ ${rolesOf(condition).join(' and ')}; lines: 95 % intervals, where there are some.`)] : parallel(models, view === 'layers' ? byLayer : metric, width - 42, view === 'layers')),
    view !== 'layers' && differ.length > 0 && h('p', { class: 'muted' }, `The metrics of these models were not all asked alike: ${differ.join(', ')}.`),
  ].filter(Boolean);
}

const axisTitle = (axis) => (axis.id === 'score' ? SCORE_NAMES[current.condition().score] : axis.title);

// The score, then the metrics most models have, one family after another.
function preferred(axes) {
  const rank = (axis) => (axis.id === 'score' ? -1 : FIRST_METRICS.includes(axis.id) ? FIRST_METRICS.indexOf(axis.id) : 99);
  return [...axes].sort((a, b) => rank(a) - rank(b)).slice(0, 9);
}

const modelColour = (model) => (METHODS.length > 1 ? methodColour(model.method) : runColour(runFor(model)));
const modelLines = (model, axes) => [h('b', {}, bdi(model.label)), ...axes.map((axis) => h('span', { class: 'row' }, `${axisTitle(axis)} ${brief(axis.read(model))}${Number.isFinite(axis.ends(model)[0]) ? `, ${axis.ends(model).map(brief).join(' to ')}` : ''}`, h('br')))];
const range = (axis, models) => {
  const values = models.map(axis.read).filter(Number.isFinite);
  if (!values.length) return [0, 1];
  const [low, high] = [Math.min(...values), Math.max(...values)];
  return low >= 0 && high <= 1 && (high > 0.2) ? [0, 1] : [low - 0.05 * (high - low || 1), high + 0.05 * (high - low || 1)];
};
const chooseModel = (model) => { const run = runFor(model); if (run) current.choose(run); };

const anchorModel = (condition, role) => MODELS.find((model) => model.name === condition[role]) ?? named(role) ?? { label: role, metrics: {} };

// Models as dots, anchors as ◇, each with its intervals along both axes.
function scatterAll(judged, xAxis, yAxisOf, width) {
  const height = 400;
  const models = [...rolesOf(current.condition()).map((role) => ({ ...anchorModel(current.condition(), role), role })), ...judged.filter((model) => !isAnchor(model))];
  const [rx, ry] = [range(xAxis, models), range(yAxisOf, models)];
  const x = linear(...rx, 56, width - 14);
  const y = linear(...ry, height - 52, 14);
  const there = models.filter((model) => Number.isFinite(xAxis.read(model)) && Number.isFinite(yAxisOf.read(model)));
  const label = there.length <= 14;
  const limit = (from, to, x1, x2, y1, y2, colour) => Number.isFinite(from) && Number.isFinite(to) && g('line', { class: 'limit', x1, x2, y1, y2, stroke: colour, 'stroke-width': 2, opacity: .4 });
  const cut = (value, [low, high]) => clamp(value, low, high);
  return canvas(width, height, `${axisTitle(yAxisOf)} by ${axisTitle(xAxis)}`, yAxis(ticks(...ry, 5), y, 56, width - 14),
    ticks(...rx, 6).map((value) => g('text', { x: x(value), y: height - 32, 'text-anchor': 'middle' }, brief(value))),
    there.map((model) => {
      const anchor = isAnchor(model);
      const picked = current.run()?.info === model;
      const [cx, cy] = [x(xAxis.read(model)), y(yAxisOf.read(model))];
      const colour = anchor ? css('--ink') : modelColour(model);
      const [[left, right], [low, high]] = [xAxis.ends(model), yAxisOf.ends(model)];
      const turned = cx + 11 + Math.min(26, model.label.length) * 8 > width;
      const name = short(anchor ? model.role : model.label, Math.min(26, Math.floor((turned ? cx - 11 : width - cx - 11) / 8)));
      const dot = [there.length <= 40 && [limit(left, right, x(cut(left, rx)), x(cut(right, rx)), cy, cy, colour), limit(low, high, cx, cx, y(cut(low, ry)), y(cut(high, ry)), colour)],
        anchor ? g('rect', { class: 'anchor', x: cx - 5, y: cy - 5, width: 10, height: 10, fill: css('--card'), stroke: colour, 'stroke-width': 1.6, transform: `rotate(45 ${cx} ${cy})` })
          : g('circle', { class: 'dot', cx, cy, r: picked ? 9 : 6.5, fill: colour, style: picked ? { stroke: css('--ink'), 'stroke-width': 2 } : {} }),
        (label || anchor) && g('text', { x: turned ? cx - 11 : cx + 11, y: cy - 6, 'text-anchor': turned ? 'end' : 'start', class: picked ? 'strong' : null }, name)];
      return hover(anchor ? g('g', {}, dot) : press(g('g', {}, dot), model.label, () => chooseModel(model)), () => modelLines(model, [xAxis, yAxisOf]));
    }),
    g('text', { x: (width + 42) / 2, y: height - 8, 'text-anchor': 'middle', class: 'strong' }, axisTitle(xAxis)),
    g('text', { x: 14, y: height / 2 - 20, 'text-anchor': 'middle', class: 'strong', transform: `rotate(-90 14 ${height / 2 - 20})` }, axisTitle(yAxisOf)));
}

function parallel(models, axes, width, tight) {
  const height = tight ? 320 : 380;
  const x = linear(0, Math.max(1, axes.length - 1), tight ? 40 : 70, width - (tight ? 16 : 70));
  const scales = axes.map((axis) => linear(...(axis.range ?? range(axis, models)), height - 44, tight ? 18 : 64));
  const points = (model) => axes.map((axis, at) => [x(at), scales[at](axis.read(model))]);
  const chosen = current.run()?.info;
  const line = (model) => {
    const picked = model === chosen;
    const quiet = chosen && !picked;
    return hover(g('path', { d: path(points(model)), fill: 'none', stroke: picked ? css('--ink') : modelColour(model), 'stroke-width': picked ? 3.2 : 1.6, opacity: quiet ? (models.length > 40 ? .35 : .65) : 1, 'stroke-linejoin': 'round', style: { cursor: 'pointer' }, onclick: () => chooseModel(model) }),
      () => modelLines(model, tight ? [] : axes));
  };
  const rows = tight ? 1 : 2;
  return canvas(width, height, 'one line per model',
    axes.map((axis, at) => {
      const [low, high] = axis.range ?? range(axis, models);
      return [g('line', { class: 'axis', x1: x(at), x2: x(at), y1: scales[at](low), y2: scales[at](high) }),
        g('text', { x: x(at), y: tight ? height - 24 : 18 + (at % rows) * 18, 'text-anchor': 'middle', class: tight ? null : 'strong' }, short(axisTitle(axis), 24)),
        !tight && [g('text', { x: x(at), y: height - 26, 'text-anchor': 'middle' }, brief(low)), g('text', { x: x(at), y: 56, 'text-anchor': 'middle' }, brief(high))]];
    }),
    tight && [yAxis([0, 0.5, 1], scales[0], 40, width - 16), g('text', { x: width / 2, y: height - 4, 'text-anchor': 'middle' }, 'layer')],
    models.filter((model) => model !== chosen).map(line), chosen && models.includes(chosen) && line(chosen));
}
