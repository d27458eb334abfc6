// Exact match, meta-evaluation, steering, retraining, and the record.
const CATEGORY_COLOURS = { exact: '--erased', over: '--s1', under: '--hidden', general_knowledge: '--none' };
const CATEGORY_NAMES = { exact: 'exactly erased', over: 'over-erased', under: 'under-erased', general_knowledge: 'general knowledge' };

function mountCategories() {
  const runs = RUNS.filter((run) => run.where.score === 'em');
  if (!runs.length) return;
  const body = section('categories');
  const box = h('div', { class: 'wrap' });
  const draw = () => {
    const names = Object.keys(CATEGORY_COLOURS);
    const bar = (run) => {
      const count = run.extra.categories ?? {};
      const all = Object.values(count).reduce((a, b) => a + b, 0);
      return h('span', { class: 'stack', role: 'img', 'aria-label': names.map((name) => `${CATEGORY_NAMES[name]} ${count[name] ?? 0}`).join(', ') },
        names.map((name) => h('span', { title: `${CATEGORY_NAMES[name]}: ${count[name] ?? 0}`, style: { width: `${(100 * (count[name] ?? 0)) / all}%`, background: css(CATEGORY_COLOURS[name]) } })));
    };
    const pair = (value, ends, why) => h('span', {}, h('b', {}, fmt(value)), (ends || why) && h('div', { class: 'muted', style: { 'white-space': 'nowrap' } }, ends ? `${fmt(ends[0])} to ${fmt(ends[1])}` : bdi(why)));
    const table = sortable({
      rows: runs, label: 'erasure categories', sort: state.get('em', 'udr asc').split(' '), onsort: (id, way) => state.set({ em: `${id} ${way}` }),
      pinned: ['full', 'retain'].filter((role) => runs[0].where.calibration[role]).map((role) => ({ anchor: true, label: role, value: runs[0].where.calibration[role].udr, extra: { retention: runs[0].where.calibration[role].retention } })),
      columns: [
        { id: 'label', title: 'Model', value: (run) => run.label, cell: (run) => bdi(run.label) },
        { id: 'udr', title: 'UDR', num: true, help: 'share of the layers where retain loses the answer that lose it here too', value: (run) => run.value, cell: (run) => pair(run.value, Number.isFinite(run.low) && [run.low, run.high], run.why) },
        { id: 'retention', title: 'Retention', num: true, help: 'share of the answer still given at those layers', value: (run) => run.extra.retention, cell: (run) => pair(run.extra.retention, run.extra.retention_ci95, run.extra.retention_ci95_why) },
        { id: 'bar', title: 'Examples', cell: (run) => (run.anchor ? 'calibration' : bar(run)) },
        ...names.map((name) => ({ id: name, title: CATEGORY_NAMES[name], num: true, value: (run) => run.extra.categories?.[name], cell: (run) => run.extra.categories?.[name] ?? '' })),
        { id: 'scored', title: 'Scored', num: true, value: (run) => run.n_scored, cell: (run) => (run.anchor ? '' : `${run.n_scored}/${run.n}`) },
      ],
    });
    refocus(box, table.node);
    keyRow.replaceChildren(...key(...names.map((name) => marker(css(CATEGORY_COLOURS[name]), CATEGORY_NAMES[name]))).childNodes);
  };
  const keyRow = h('div', { class: 'key' });
  body.append(box, keyRow);
  state.on(['em', 'theme'], draw);
  draw();
}

function mountMeta() {
  if (!DATA.meta.length) return;
  const body = section('meta');
  DATA.meta.forEach((one, at) => {
    if (DATA.meta.length > 1) body.append(h('h3', {}, bdi(one.folder)));
    body.append(metaTable(one, `meta${at}`), h('p', { class: 'muted' }, 'Robustness is the harmonic mean of the two columns before it; Overall that of Faithfulness and Robustness. Each metric is tried on the models it can tell apart, so n differs from row to row.'));
  });
}

function metaTable(one, name) {
  const box = h('div', { class: 'wrap' });
  const draw = () => {
    const bar = (value, low, high) => (Number.isFinite(value) ? h('span', { style: { display: 'inline-flex', gap: '.6rem', 'align-items': 'center' }, title: Number.isFinite(low) ? `${fmt(low)} to ${fmt(high)}` : null },
      g('svg', { width: 70, height: 10, 'aria-hidden': 'true' }, g('rect', { width: 70, height: 10, rx: 3, fill: css('--none') }), g('rect', { width: 70 * clamp(value, 0, 1), height: 10, rx: 3, fill: css('--accent') }),
        Number.isFinite(low) && g('line', { x1: 70 * low, x2: 70 * high, y1: 5, y2: 5, stroke: css('--ink'), 'stroke-width': 1.5 })), fmt(value), Number.isFinite(low) && h('small', { class: 'nb' }, `${fmt(low, 2)} to ${fmt(high, 2)}`)) : '–');
    const column = (id, title, n, low, high) => ({ id, title, num: true, value: (row) => row[id] ?? NaN,
      cell: (row) => [bar(row[id], row[low], row[high]), n && Number.isFinite(row[n]) ? h('span', { class: 'muted', style: { 'margin-left': '.5rem', 'font-size': '.85em' } }, `n ${row[n]}`) : ''] });
    const columns = [
      { id: 'label', title: 'Metric', value: (row) => row.label, cell: (row) => h('b', {}, bdi(row.label ?? row.metric)) },
      { id: 'category', title: 'Kind', value: (row) => row.category, cell: (row) => h('span', { class: 'chip' }, row.category ?? '–') },
      column('faithfulness', 'Faithfulness', null, 'faithfulness_low', 'faithfulness_high'), column('quantization', 'Quantisation', 'n_quantization'),
      column('relearning', 'Relearning', 'n_relearning'), column('robustness', 'Robustness'), column('overall', 'Overall'),
      column('common_robustness', 'on common models', 'n_common_relearning'),
      { id: 'notes', title: 'Notes', cell: (row) => h('span', { class: 'gone' }, bdi(row.notes ?? '')) },
    ].filter(({ id }) => one.rows.some((row) => row[id] !== null && row[id] !== undefined && row[id] !== ''));
    refocus(box, sortable({ columns, rows: one.rows, sort: state.get(name, 'overall desc').split(' '), onsort: (id, way) => state.set({ [name]: `${id} ${way}` }), label: 'meta-evaluation' }).node);
  };
  state.on([name, 'theme'], draw);
  draw();
  return box;
}

function mountSteering() {
  if (!DATA.steering.length) return;
  const body = section('steering');
  const draw = () => body.replaceChildren(...DATA.steering.flatMap((one) => (one.kind === 'directions'
    ? directionFigures(one, widthOf(body)) : [steerFigure(one, Math.min(760, widthOf(body) - 42))])));
  state.on(['theme'], draw);
  addEventListener('resize', draw);
  draw();
}

const EDITS = { add: ['Add', 'the mean shift from unlearned to full, learned on other authors'], ablate: ['Ablate', 'the direction of not answering'], clamp: ['Clamp', 'the shift to what the other model has there'] };

// Recovery of each arm on one line: what the direction brings back, beside its controls.
function directionFigures(one, width) {
  const cards = one.experiments.map((experiment) => {
    const arms = experiment.arms.filter((arm) => Number.isFinite(arm.recovery) && !/^(dose|curve)/.test(arm.arm));
    const half = (width > 860 ? (width - 26) / 2 : width) - 42;
    const ends = arms.flatMap((arm) => [arm.recovery, ...(arm.ci95 ?? [])]);
    const x = linear(Math.min(0, ...ends), Math.max(1, ...ends), 128, half - 50);
    const [title, what] = EDITS[experiment.kind] ?? [experiment.kind, ''];
    return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, title, h('span', { class: 'muted', style: { 'font-weight': '400' } }, ` ${what}`)),
      arms.length > 0 && canvas(half, arms.length * 26 + 26, `recovery under ${title}`,
        [0, 0.5, 1].map((value) => [g('line', { class: 'grid', x1: x(value), x2: x(value), y1: 4, y2: arms.length * 26 }), g('text', { x: x(value), y: arms.length * 26 + 18, 'text-anchor': 'middle' }, value)]),
        arms.map((arm, at) => {
          const own = arm.arm === 'direction';
          const colour = css(own ? '--hidden' : '--s1');
          return [g('text', { x: 116, y: at * 26 + 20, 'text-anchor': 'end', class: own ? 'strong' : null }, short(arm.arm.replaceAll('_', ' '), 18)),
            arm.ci95 && g('line', { x1: x(arm.ci95[0]), x2: x(arm.ci95[1]), y1: at * 26 + 16, y2: at * 26 + 16, stroke: colour, 'stroke-width': 5, opacity: .35, 'stroke-linecap': 'round' }),
            g('circle', { class: 'dot', cx: x(arm.recovery), cy: at * 26 + 16, r: 6, fill: colour }), g('text', { x: half, y: at * 26 + 20, 'text-anchor': 'end' }, fmt(arm.recovery, 2))];
        })),
      h('p', { style: { margin: '.6rem 0 0' } }, h('b', {}, bdi(experiment.reading ?? experiment.unscored ?? ''))),
      arms.some((arm) => arm.ci95_why) && h('p', { class: 'gone', style: { margin: '.3rem 0 0' } }, bdi(`${arms.find((arm) => arm.ci95_why).ci95_why}; this describes these rows only`)),
      experiment.warnings.map((warning) => h('p', { class: 'muted', style: { margin: '.3rem 0 0' } }, bdi(warning))));
  });
  return [h('h3', {}, bdi(one.source), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ` · recovery: 0 nothing comes back, 1 all of it (${one.head.n_items ?? '–'} questions, ${one.head.n_folds ?? '–'} folds of authors)`)),
    h('div', { class: 'pair' }, cards)];
}

function steerFigure(one, width) {
  const points = one.points.filter((point) => Number.isFinite(point.mean));
  const all = one.points.flatMap((point) => [point.mean, point.coherence, ...(point.ci95 ?? [])]).filter(Number.isFinite);
  const [low, top] = [Math.min(0, ...all), Math.max(all.some((v) => v > 1) ? 100 : 1, ...all)];
  const xs = one.points.map((point) => point.x);
  const x = linear(Math.min(...xs), Math.max(...xs), 54, width - 20);
  const y = linear(low, top, 210, 14);
  const line = (field, colour, dash) => g('path', { d: path(points.map((point) => [x(point.x), y(point[field] ?? NaN)])), fill: 'none', stroke: colour, 'stroke-width': 2.5, 'stroke-dasharray': dash });
  const layers = one.kind === 'layers';
  return h('div', { class: 'card', style: { 'margin-bottom': '1rem' } },
    h('h3', { style: { 'margin-top': '0' } }, bdi(one.head.trait ?? 'trait'), layers ? ', by layer' : ', by strength'),
    canvas(width, 250, 'trait score', yAxis(ticks(low, top, 4), y, 54, width - 20),
      Number.isFinite(one.head.baseline ?? one.head.baseline_mean) && g('line', { x1: 54, x2: width - 20, y1: y(one.head.baseline ?? one.head.baseline_mean), y2: y(one.head.baseline ?? one.head.baseline_mean), stroke: css('--muted'), 'stroke-dasharray': '5 4' }),
      line('coherence', css('--s1'), '2 4'), line('mean', css('--accent')),
      points.map((point) => [point.ci95 && g('line', { x1: x(point.x), x2: x(point.x), y1: y(point.ci95[0]), y2: y(point.ci95[1]), stroke: css('--accent'), 'stroke-width': 4, opacity: .35, 'stroke-linecap': 'round' }),
        hover(g('circle', { class: 'dot', cx: x(point.x), cy: y(point.mean), r: 5.5, fill: css('--accent') }), () => [h('b', {}, `${layers ? 'layer' : 'strength'} ${brief(point.x)}`),
          h('span', { class: 'row' }, `score ${brief(point.mean)} · coherence ${brief(point.coherence)} · n ${point.n ?? '–'}${point.n_invalid ? `, ${point.n_invalid} invalid` : ''}${point.ci95_why ? ` · ${point.ci95_why}` : ''}`)])]),
      one.points.map((point) => g('text', { x: x(point.x), y: 230, 'text-anchor': 'middle' }, brief(point.x))),
      g('text', { x: (width + 34) / 2, y: 248, 'text-anchor': 'middle' }, layers ? 'layer' : 'coefficient')),
    key(marker(css('--accent'), 'trait score'), marker(css('--s1'), 'coherence')),
    h('dl', { class: 'facts' }, Object.entries(one.head).map(([name, value]) => [h('dt', {}, name.replaceAll('_', ' ')), h('dd', {}, typeof value === 'number' ? brief(value) : bdi(value))])));
}

// Depth on facts to keep, a row for each model and set, with its strata.
function mountKept() {
  const found = RUNS.flatMap((run) => Object.entries(run.extra.collateral ?? {}).map(([name, one]) => ({ run, name, one })));
  if (!found.length) return;
  const ends = (pair, why) => (pair ? ` ${fmt(pair[0], 2)} to ${fmt(pair[1], 2)}` : h('small', {}, bdi(why ?? 'no interval')));
  const strata = (one) => Object.entries(one.strata).map(([name, part]) => h('div', { class: 'muted' }, `${name}: ${Number.isFinite(part.depth) ? fmt(part.depth, 2) : 'unscored'} (${part.n_scored})`));
  section('kept').append(h('div', { class: 'wrap free' }, h('table', { 'aria-label': 'facts to keep' },
    h('thead', {}, h('tr', {}, ['model', 'facts', 'depth', 'selectivity', 'beyond the clip, nats', 'by distance', 'against'].map((title) => h('th', {}, title)))),
    h('tbody', {}, found.map(({ run, name, one }) => h('tr', {}, h('td', {}, bdi(run.label)), h('td', {}, bdi(name), h('div', { class: 'muted' }, `${one.n_scored} of ${one.n} scored`)),
      h('td', {}, h('b', {}, fmt(one.depth, 2)), ends(one.ci95, one.ci95_why)), h('td', {}, h('b', {}, fmt(one.selectivity.value, 2)), ends(one.selectivity.ci95, one.selectivity.why)),
      h('td', { class: 'num' }, fmt(one.over_erasure_nats, 2)), h('td', {}, strata(one)), h('td', {}, bdi(one.anchor), h('div', { class: 'muted' }, bdi(one.relative_to)))))))));
}

// One picture of training runs and attacks: everything that goes by optimiser steps; and one of checkpoints by epoch.
function mountCurves() {
  const points = [...(DATA.curves ?? []).flatMap((one) => one.points), ...checkpoints()].map((point) => ({ unit: 'step', ...point }));
  if (!points.length) return;
  const attacks = DATA.attacks.filter((one) => one.kind === 'effort').flatMap((one) => Object.entries(one.arms).flatMap(([arm, found]) => found.curve
    .filter((point) => Number.isFinite(point.rho)).map((point) => ({ unit: 'step', source: one.model, series: `recovery ${arm}`, step: point.c, value: point.rho, epoch: null }))));
  const units = ['step', 'epoch'].map((unit) => [...points, ...attacks].filter((point) => point.unit === unit)).filter((found) => found.length);
  const body = section('curves');
  const draw = () => body.replaceChildren(...units.map((found) => curveFigure(found, Math.max(420, Math.min(1100, widthOf(body)) - 42))));
  state.on(['theme'], draw);
  draw();
}

// Checkpoints of one training run, told by their names: a curve for each set of rows that several of them were asked.
function checkpoints() {
  const found = RUNS.filter((run) => run.where.score === 'uds' && !isAnchor(run.info) && Number.isFinite(run.value)).flatMap((run) => {
    const [, source, word, step] = /^(.*?)[-_/]?(checkpoint|step|epoch|ep)[-_]?(\d+)$/i.exec(run.info.name) ?? [];
    return word ? [{ run, source, unit: /^ep/i.test(word) ? 'epoch' : 'step', step: Number(step), value: run.value, epoch: null }] : [];
  });
  const named = found.filter((one) => found.filter((other) => ['source', 'unit'].every((key) => one[key] === other[key]) && one.run.where === other.run.where).length > 1);
  const last = (source) => source.split('/').filter(Boolean).at(-1) ?? 'run';
  const alone = (source) => new Set(named.map((one) => one.source).filter((other) => last(other) === last(source))).size === 1;
  const several = new Set(named.map((one) => one.run.where)).size > 1;
  return named.map(({ run, source, ...point }) => ({ ...point, source: alone(source) ? last(source) : source, series: several ? conditionName(run.where) : SCORE_NAMES.uds }));
}

function curveFigure(points, width) {
  const names = [...new Set(points.map((point) => `${point.source}: ${point.series}`))];
  const colours = ['--accent', '--hidden', '--s1', '--partly', '--muted'];
  const [{ unit }] = points;
  const ends = [Math.min, Math.max].map((of) => of(...points.map((point) => point.step)));
  const x = linear(...ends, 44, width - 16);
  const values = points.map((point) => point.value);
  const y = linear(Math.min(0, ...values), Math.max(1, ...values), 210, 12);
  return h('div', { class: 'card' }, canvas(width, 250, `by ${unit}`, yAxis([0, 0.25, 0.5, 0.75, 1], y, 44, width - 16),
    names.map((name, at) => {
      const own = points.filter((point) => `${point.source}: ${point.series}` === name).sort((a, b) => a.step - b.step);
      const colour = css(colours[at % colours.length]);
      return [g('path', { d: path(own.map((point) => [x(point.step), y(point.value)])), fill: 'none', stroke: colour, 'stroke-width': 2.5, 'stroke-dasharray': /: recovery /.test(name) ? '5 4' : null }),
        own.map((point) => hover(g('circle', { class: 'dot', cx: x(point.step), cy: y(point.value), r: 4.5, fill: colour }), () => [h('b', {}, bdi(name)),
          h('span', { class: 'row' }, `${unit} ${point.step}${Number.isFinite(point.epoch) ? `, epoch ${brief(point.epoch)}` : ''}: ${fmt(point.value)}`)]))];
    }),
    ticks(...ends, 6).map((step) => g('text', { x: x(step), y: 230, 'text-anchor': 'middle' }, brief(step))),
    g('text', { x: (width + 28) / 2, y: 248, 'text-anchor': 'middle' }, unit === 'epoch' ? 'epochs' : 'optimiser steps')),
  key(...names.map((name, at) => marker(css(colours[at % colours.length]), name))));
}

function mountAttacks() {
  if (!DATA.attacks.length) return;
  const body = section('attacks');
  const figures = { rtt: rttFigure, relearn: relearnFigure, effort: effortFigure, worst: worstFigure, sample: sampleFigure, know: knowFigure };
  const draw = () => body.replaceChildren(...notAsked(), h('div', { class: 'pair' }, DATA.attacks.map((one) => figures[one.kind](one))));
  state.on(['theme'], draw);
  draw();
}

// Accuracies of the conditions, then what follows from them.
function rttFigure(one) {
  const x = linear(0, 1, 190, 455);
  const colour = { B: '--hidden', A: '--s1', N: '--muted', N0: '--muted' };
  const height = one.accuracies.length * 27 + 8;
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, bdi(one.model), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ' retrained on other facts of ', bdi(one.data))),
    one.gate && h('p', { class: 'alarm' }, bdi(one.gate)),
    canvas(520, height, 'accuracies', Number.isFinite(one.chance) && [g('line', { class: 'grid', x1: x(one.chance), x2: x(one.chance), y1: 0, y2: height - 8 })],
      one.accuracies.map((row, at) => {
        const y = at * 27 + 6;
        return [g('text', { x: 178, y: y + 12, 'text-anchor': 'end', class: row.condition === 'B' ? 'strong' : null }, `${row.condition}  ${short(row.name.split(':')[0], 26)}`),
          g('rect', { x: 190, y, width: 265, height: 15, rx: 4, fill: css('--none') }),
          g('rect', { x: 190, y, width: Math.max(2, x(clamp(row.value, 0, 1)) - 190), height: 15, rx: 4, fill: css(colour[row.condition] ?? '--accent') }),
          Number.isFinite(row.low) && g('line', { x1: x(row.low), x2: x(row.high), y1: y + 7.5, y2: y + 7.5, stroke: css('--ink'), 'stroke-width': 1.5 }),
          g('text', { x: 467, y: y + 12, class: 'strong' }, percent(row.value))];
      })),
    !one.gate && h('dl', { class: 'facts' }, one.ratios.map((ratio) => [h('dt', {}, `${ratio.name.replaceAll('_', ' ')} ${ratio.formula}`),
      h('dd', {}, Number.isFinite(ratio.value) ? [h('b', {}, fmt(ratio.value, 2)), Number.isFinite(ratio.low) ? ` ${fmt(ratio.low, 2)} to ${fmt(ratio.high, 2)}` : ratio.why ? h('span', { class: 'gone' }, ' ', bdi(ratio.why)) : ''] : h('span', { class: 'gone' }, bdi(ratio.reason || 'no value')))])),
    Number.isFinite(one.chance) && h('p', { class: 'muted', style: { margin: '.5rem 0' } }, `dotted: chance, ${percent(one.chance)}`),
    one.accuracies.filter((row) => row.why).map((row) => h('p', { class: 'muted', style: { margin: '.2rem 0' } }, `${row.condition}: `, bdi(row.why))),
    one.notes.map((note) => h('p', { class: 'muted', style: { margin: '.2rem 0' } }, bdi(note))));
}

function relearnFigure(one) {
  const arrow = (row) => h('span', { style: { 'white-space': 'nowrap' } }, `${fmt(row.before)} → `, h('b', {}, fmt(row.after)));
  const models = [...new Set(one.rows.map((row) => row.model))];
  const scores = [...new Set(one.rows.map((row) => row.score))];
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, 'Relearning: one pass over the forget answers'),
    grid('relearning', ['Score', ...models.map((model) => bdi(model))], scores.map((score) => h('tr', {}, h('td', {}, score), models.map((model) => {
      const row = one.rows.find((each) => each.model === model && each.score === score);
      return h('td', {}, row ? arrow(row) : '–');
    })))),
    h('p', { class: 'muted' }, 'Before and after, of one run each: no interval. The retain model had nothing to recover: only a change beyond its own is recovery.'));
}

// Recovery rho by the length of the attack, one line for each kind of rows.
function effortFigure(one) {
  const colours = ['--hidden', '--accent', '--s1', '--muted'];
  const arms = Object.entries(one.arms);
  const steps = arms[0]?.[1].curve.map((point) => point.c) ?? [];
  const known = arms.flatMap(([, arm]) => arm.curve.map((point) => point.rho)).filter(Number.isFinite);
  const x = linear(0, Math.max(1, steps.length - 1), 44, 500);
  const y = linear(Math.min(0, ...known), Math.max(1, ...known), 190, 12);
  const steps_of = (arm, name) => (arm[name] === null ? '–' : `${arm.censored[name] ? '> ' : ''}${arm[name]}`);
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, bdi(one.model), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ' recovery by steps of training, facts of ', bdi(one.data))),
    canvas(520, 232, 'recovery by steps of training', yAxis([0, 0.5, 0.8, 1], y, 44, 500),
      arms.map(([name, arm], at) => {
        const colour = css(colours[at % colours.length]);
        const points = arm.curve.map((point, place) => [point, place]).filter(([point]) => Number.isFinite(point.rho));
        return [g('path', { d: path(points.map(([point, place]) => [x(place), y(point.rho)])), fill: 'none', stroke: colour, 'stroke-width': 2.5 }),
          points.map(([point, place]) => [Number.isFinite(point.low) && g('line', { x1: x(place), x2: x(place), y1: y(clamp(point.low, Math.min(0, ...known), 2)), y2: y(point.rho), stroke: colour, 'stroke-width': 4, opacity: .3, 'stroke-linecap': 'round' }),
            hover(g('circle', { class: 'dot', cx: x(place), cy: y(point.rho), r: 4.5, fill: colour }), () => [h('b', {}, `${name}, ${point.c} steps`),
              h('span', { class: 'row' }, `rho ${fmt(point.rho, 2)}${Number.isFinite(point.low) ? ` (from ${fmt(point.low, 2)})` : point.reason ? ` (${point.reason})` : ''} · ${brief(point.tokens)} tokens · ${brief(point.flop)} FLOP`),
              h('span', { class: 'row' }, `answers rightly: model ${percent(point.source)} · full ${percent(point.full)} · retain ${percent(point.retain)}`)])])];
      }),
      steps.map((step, place) => g('text', { x: x(place), y: 210, 'text-anchor': 'middle' }, step)), g('text', { x: 272, y: 229, 'text-anchor': 'middle' }, 'optimiser steps')),
    key(...arms.map(([name], at) => marker(css(colours[at % colours.length]), name))),
    grid('effort', ['rows', 'E50', 'E80', 'rate'], arms.map(([name, arm]) => h('tr', {}, h('td', {}, h('b', {}, name), ` ${arm.trained_on}`), h('td', { class: 'num' }, steps_of(arm, 'e50')), h('td', { class: 'num' }, steps_of(arm, 'e80')), h('td', { class: 'num' }, brief(arm.lr))))),
    h('p', { class: 'muted', style: { margin: '.5rem 0' } }, `Steps until half and four fifths of what full knows is back, beyond what the same attack teaches retain; read by ${one.by}, together over all lengths.`),
    one.notes.map((note) => h('p', { class: 'muted', style: { margin: '.2rem 0' } }, bdi(note))));
}

// Which facts come out, by attack: rates beside those of models that never knew, then the matrix.
function worstFigure(one) {
  const names = one.attacks.filter((row) => row.counts).map((row) => row.name);
  const cells = (row) => ['control', 'source', 'retain'].map((name) => h('td', {}, fmt(row[name])));
  const named = new Set(one.named);
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, bdi(one.source), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ' worst case over attacks')),
    h('p', {}, h('b', {}, bdi(one.headline))),
    one.unsaid && h('p', { class: 'muted' }, bdi(one.unsaid), '.'),
    one.people && h('p', {}, bdi(one.people), '.'),
    h('p', { class: 'muted' }, `excess ${fmt(one.excess)}`, one.ci95 ? ` (${fmt(one.ci95[0])} to ${fmt(one.ci95[1])})` : bdi(` (${one.no_interval ?? 'no interval'})`), ` · attack list ${one.attack_list.slice(0, 12)} · never knew: `, bdi(one.retain.join(', '))),
    grid('hit rates of attacks', ['Attack', 'full', 'source', 'retain', 'only it', 'gain'], one.attacks.map((row) => h('tr', { title: row.about }, h('td', {}, bdi(row.name)), cells(row), h('td', {}, row.counts ? String(row.only) : row.control ? 'not compared' : 'no control'), h('td', {}, fmt(row.gain))))),
    grid('facts by attack', ['Fact', 'entity', 'attacks that broke it', 'q'], one.facts.map((fact) => h('tr', {}, h('td', {}, String(fact.idx)), h('td', {}, named.has(fact.idx) ? h('b', {}, bdi(fact.entity)) : bdi(fact.entity)),
        h('td', {}, fact.unscored ? h('span', { class: 'muted' }, bdi(fact.unscored)) : names.map((name) => (fact.attacks.split(';').includes(name) ? '■' : '·')).join('')), h('td', {}, fact.q ? fmt(Number(fact.q)) : '–')))),
    h('p', { class: 'muted' }, 'One sign per attack that counts, in the order of the table above. Named facts are bold.'));
}

function sampleFigure(one) {
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, bdi(one.source), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ` ${one.samples} samples a fact`)),
    grid('leakage by sampling', ['T', 'top-p', 'k', 'leak@k', 'retain', 'excess', 'false hits'], one.leak.map((row) => h('tr', {}, [brief(row.temperature), brief(row.top_p), String(row.k), fmt(row.source), fmt(row.retain),
        Number.isFinite(row.low) ? `${fmt(row.excess)} (${fmt(row.low)} to ${fmt(row.high)})` : [fmt(row.excess), h('small', {}, bdi(row.reason ?? 'no interval'))], fmt(row.false_leak)].map((text) => h('td', {}, text))))));
}

// One relation: what is said of every value after every subject's prompt, the true ones outlined.
// Cells have one size on all cards, so that models can be compared.
const KNOWN = DATA.attacks.filter((one) => one.kind === 'know');
const cellSize = () => Math.max(12, Math.min(26, 300 / Math.max(1, ...KNOWN.map((one) => one.matrix.values.length))));

function knowFigure(one) {
  const { subjects, values, truth, p } = one.matrix;
  const size = cellSize(), left = 170, top = 8;
  const cells = subjects.map((subject, row) => [
    g('text', { x: left - 8, y: top + row * size + size / 2 + 4, 'text-anchor': 'end' }, short(subject, 24)),
    values.map((value, column) => hover(g('rect', {
      x: left + column * size, y: top + row * size, width: size - 1.5, height: size - 1.5, fill: css('--hidden'), 'fill-opacity': .06 + .94 * p[row][column],
      stroke: truth[row] === column ? css('--ink') : 'none', 'stroke-width': 1.5,
    }), () => [h('b', {}, bdi(subject)), h('span', { class: 'row' }, bdi(value), `: ${percent(p[row][column])}${truth[row] === column ? ', true' : ''}`)]))]);
  const bits = one.bits && Number.isFinite(one.bits.value) ? `${fmt(one.bits.value, 2)} of ${fmt(one.max_bits, 1)} bits a fact${Number.isFinite(one.bits.low) ? ` (${fmt(one.bits.low, 2)} to ${fmt(one.bits.high, 2)})` : one.bits.why ? ` (${one.bits.why})` : ''}, ${one.beyond}` : 'No bits: no fact has a prior';
  return h('div', { class: 'card' }, h('h3', { style: { 'margin-top': '0' } }, bdi(one.source), h('span', { class: 'muted', style: { 'font-weight': '400' } }, ' who has what')),
    h('p', {}, h('b', {}, bdi(one.headline))),
    canvas(520, top + subjects.length * size + 10, `subjects and values of ${one.matrix.relation}`, cells),
    h('p', { class: 'muted' }, 'Relation ', bdi(one.matrix.relation), ': a row each subject, a column each value, the stronger the colour the likelier; true values are outlined. ', bits, '.'),
    grid('relations', ['Relation', 'subjects', 'z', 'p'], one.relations.map((row) => h('tr', {}, h('td', {}, bdi(row.relation)), h('td', { class: 'num' }, String(row.n)), h('td', { class: 'num' }, fmt(row.z, 1)), h('td', { class: 'num' }, brief(row.p))))),
    one.people && h('p', {}, bdi(one.people), '.'),
    one.controls.map((control) => h('p', { class: control.passed ? 'muted' : 'alarm', style: { margin: '.2rem 0' } }, 'control: ', bdi(control.said))));
}

// Why facts are in no relation: once for all models that were asked the same rows.
const notAsked = () => [...new Set(KNOWN.map((one) => one.not_asked).filter(Boolean))].map((why) => h('p', { class: 'muted' }, 'Who has what: ', bdi(why), '.'));

function mountRecord() {
  const body = section('record');
  const chosen = () => current.run();
  body.append(h('div', { class: 'controls', id: 'downloads' },
    MODELS.length > 0 && button('models.csv', () => save('models.csv', 'text/csv', modelsCsv())),
    HAS_TABLES && button('examples.csv of the chosen model', () => save('examples.csv', 'text/csv', examplesCsv(chosen()))),
    MEASURED.length > 0 && button('metrics.csv', () => save('metrics.csv', 'text/csv', metricsCsv())),
    button('everything as JSON', () => save('audit.json', 'application/json', $('#data').textContent))));
  const conditions = DATA.conditions.map((one) => h('tr', {}, h('td', {}, SCORE_LONG[one.score]), h('td', {}, bdi(one.full, 'name')), h('td', {}, bdi(one.retain, 'name')), h('td', { class: 'num' }, one.examples.length),
    h('td', { style: { 'white-space': 'normal', 'min-width': '15rem' } }, Object.entries(one.settings).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(', '))));
  if (conditions.length) body.append(grid('settings', ['score', 'full', 'retain', 'examples', 'settings'], conditions));
  const shown = (one) => {
    const node = h('details', {}, h('summary', {}, 'manifest of ', bdi(one.folder, 'name')));
    node.addEventListener('toggle', () => { if (node.open && node.childElementCount === 1) node.append(h('pre', {}, JSON.stringify(one.content, null, 1))); });
    return node;
  };
  const list = DATA.manifests.length > 12
    ? h('details', {}, h('summary', {}, `${DATA.manifests.length} manifests`), h('div', { class: 'inner' }, DATA.manifests.map(shown)))
    : h('div', {}, DATA.manifests.map(shown));
  body.append(list);
  const reasons = RUNS.filter((run) => Object.keys(run.unscored).length);
  if (reasons.length) body.append(h('details', {}, h('summary', {}, 'Unscored examples'), h('div', { class: 'inner' }, reasons.map((run) => h('p', {}, h('b', {}, bdi(run.label)), ` (${SCORE_LONG[run.where.score]}): `,
    Object.entries(run.unscored).map(([why, idx]) => [bdi(why), ` — idx ${idx.join(', ')}. `]))))));
}

// Two models may have one name: the label and the weights tell them apart.
const TOLD = ['model', 'label', 'weights'];
const toldOf = (info) => [info.name, info.label, info.weights.startsWith('name ') ? '' : info.weights];

function modelsCsv() {
  const names = DATA.metric_kinds.map((kind) => kind.name);
  const patched = new Set(RUNS.map((run) => run.info));
  const others = MODELS.filter((info) => !patched.has(info)).map((info) => ({ info, where: {} }));
  return csv([...TOLD, 'method', 'epoch', 'settings', 'score', 'value', 'low', 'high', 'n', 'n_scored', ...names],
    [...RUNS, ...others].map((run) => [...toldOf(run.info), run.info.method, run.info.epoch, run.where.id, run.where.score, run.value, run.low, run.high, run.n, run.n_scored, ...names.map((name) => metricOf(run.info, name))]));
}

function examplesCsv(run) {
  const { layers, examples } = run.where;
  const { s1, s2, scores, baseline } = tables(run);
  const at = (values, row) => layers.map((_, column) => values[row * layers.length + column]);
  return csv(['idx', 'group', 'question', 'entity', run.where.score, 'baseline', ...layers.map((l) => `s1_${l}`), ...layers.map((l) => `s2_${l}`)],
    examples.map((one, row) => [one.idx, authorOf(one) && one.group, one.question, one.entity, scores[row], baseline?.[row], ...at(s1, row), ...at(s2, row)]));
}

function metricsCsv() {
  const numbers = ['value', 'low', 'high', 'n_scored', 'n_unscored', 'reason', 'told'];
  return csv([...TOLD, 'metric', 'high_means', ...numbers],
    MODELS.flatMap((model) => DATA.metric_kinds.filter((kind) => model.metrics[kind.name]).map((kind) => [...toldOf(model), kind.name, kind.high_means, ...numbers.map((_, at) => model.metrics[kind.name][at])])));
}
