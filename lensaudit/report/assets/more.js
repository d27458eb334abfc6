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
    const pair = (value, ends) => h('span', {}, h('b', {}, fmt(value)), ends && h('div', { class: 'muted', style: { 'white-space': 'nowrap' } }, `${fmt(ends[0])} to ${fmt(ends[1])}`));
    const table = sortable({
      rows: runs, label: 'erasure categories', sort: state.get('em', 'udr asc').split(' '), onsort: (id, way) => state.set({ em: `${id} ${way}` }),
      pinned: ['full', 'retain'].filter((role) => runs[0].where.calibration[role]).map((role) => ({ anchor: true, label: role, value: runs[0].where.calibration[role].udr, extra: { retention: runs[0].where.calibration[role].retention } })),
      columns: [
        { id: 'label', title: 'Model', value: (run) => run.label, cell: (run) => bdi(run.label) },
        { id: 'udr', title: 'UDR', num: true, help: 'share of the layers where retain loses the answer that lose it here too', value: (run) => run.value, cell: (run) => pair(run.value, Number.isFinite(run.low) && [run.low, run.high]) },
        { id: 'retention', title: 'Retention', num: true, help: 'share of the answer still given at those layers', value: (run) => run.extra.retention, cell: (run) => pair(run.extra.retention, run.extra.retention_ci95) },
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
        Number.isFinite(low) && g('line', { x1: 70 * low, x2: 70 * high, y1: 5, y2: 5, stroke: css('--ink'), 'stroke-width': 1.5 })), fmt(value)) : '–');
    const column = (id, title, n, low, high) => ({ id, title, num: true, value: (row) => row[id] ?? NaN,
      cell: (row) => [bar(row[id], row[low], row[high]), n && Number.isFinite(row[n]) ? h('span', { class: 'gone' }, ` n ${row[n]}`) : ''] });
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
  const draw = () => body.replaceChildren(...DATA.steering.map((one, at) => (one.kind === 'interventions'
    ? h('div', {}, h('h3', {}, bdi(one.folder)), recordTable(one.rows, { name: `steer${at}`, label: 'interventions', first: ['kind', 'layer', 'strength', 'RR', 'RR_star'] }))
    : steerFigure(one, Math.min(760, widthOf(body) - 42)))));
  state.on(['theme'], draw);
  draw();
}

function steerFigure(one, width) {
  const points = one.points.filter((point) => Number.isFinite(point.mean));
  const all = one.points.flatMap((point) => [point.mean, point.coherence, ...(point.ci95 ?? [])]).filter(Number.isFinite);
  const [low, top] = [Math.min(0, ...all), Math.max(all.some((v) => v > 1) ? 100 : 1, ...all)];
  const xs = one.points.map((point) => point.x);
  const x = linear(Math.min(...xs), Math.max(...xs), 54, width - 20);
  const y = linear(low, top, 210, 14);
  const line = (field, colour, dash) => g('path', { d: path(points.map((point) => [x(point.x), y(point[field])])), fill: 'none', stroke: colour, 'stroke-width': 2.5, 'stroke-dasharray': dash });
  const layers = one.kind === 'layers';
  return h('div', { class: 'card', style: { 'margin-bottom': '1rem' } },
    h('h3', { style: { 'margin-top': '0' } }, bdi(one.head.trait ?? 'trait'), layers ? ', by layer' : ', by strength'),
    canvas(width, 250, 'trait score', yAxis(ticks(low, top, 4), y, 54, width - 20),
      Number.isFinite(one.head.baseline ?? one.head.baseline_mean) && g('line', { x1: 54, x2: width - 20, y1: y(one.head.baseline ?? one.head.baseline_mean), y2: y(one.head.baseline ?? one.head.baseline_mean), stroke: css('--muted'), 'stroke-dasharray': '5 4' }),
      line('coherence', css('--s1'), '2 4'), line('mean', css('--accent')),
      points.map((point) => [point.ci95 && g('line', { x1: x(point.x), x2: x(point.x), y1: y(point.ci95[0]), y2: y(point.ci95[1]), stroke: css('--accent'), 'stroke-width': 4, opacity: .35, 'stroke-linecap': 'round' }),
        hover(g('circle', { class: 'dot', cx: x(point.x), cy: y(point.mean), r: 5.5, fill: css('--accent') }), () => [h('b', {}, `${layers ? 'layer' : 'strength'} ${brief(point.x)}`),
          h('span', { class: 'row' }, `score ${brief(point.mean)} · coherence ${brief(point.coherence)} · n ${point.n ?? '–'}${point.n_invalid ? `, ${point.n_invalid} invalid` : ''}`)])]),
      one.points.map((point) => g('text', { x: x(point.x), y: 230, 'text-anchor': 'middle' }, brief(point.x))),
      g('text', { x: (width + 34) / 2, y: 248, 'text-anchor': 'middle' }, layers ? 'layer' : 'coefficient')),
    key(marker(css('--accent'), 'trait score'), marker(css('--s1'), 'coherence')),
    h('dl', { class: 'facts' }, Object.entries(one.head).map(([name, value]) => [h('dt', {}, name.replaceAll('_', ' ')), h('dd', {}, typeof value === 'number' ? brief(value) : bdi(value))])));
}

function mountRtt() {
  if (!DATA.rtt.length) return;
  const body = section('rtt');
  DATA.rtt.forEach((one, at) => {
    body.append(h('h3', {}, bdi(one.folder)), ...one.rows.map((row) => rttFigure(row)).filter(Boolean),
      recordTable(one.rows, { name: `rtt${at}`, label: 'retraining attack', first: ['dataset', 'model_id', 'forget_acc_baseline', 'forget_acc_unlearn', 'forget_acc_unlearn_rtt', 'forget_acc_baseline_rtt', 'forget_acc_control_rtt', 'recovery_rate', 'recovery_adjusted', 'gap_closed'] }));
  });
  body.append(h('p', { class: 'muted' }, 'Failed recovery is not proof of removal.'));
}

// Accuracies of one row on one line, from the unlearned model to what retraining brought back.
function rttFigure(row) {
  const names = { forget_acc_baseline: '0 original', forget_acc_unlearn: 'A unlearned', forget_acc_unlearn_rtt: 'B retrained', forget_acc_baseline_rtt: 'C ceiling', forget_acc_control_rtt: 'N never knew' };
  const there = Object.entries(names).filter(([field]) => typeof row[field] === 'number');
  if (there.length < 2) return null;
  const colour = { forget_acc_unlearn_rtt: '--hidden', forget_acc_unlearn: '--s1' };
  const x = linear(0, 1, 110, 560);
  return h('figure', { class: 'card', style: { 'margin-bottom': '.8rem' } }, h('b', {}, bdi(row.model_id ?? row.model ?? '')),
    canvas(620, 20 + there.length * 26, 'accuracies', there.map(([field, name], at) => [
      g('text', { x: 98, y: 24 + at * 26, 'text-anchor': 'end' }, name), g('rect', { x: 110, y: 12 + at * 26, width: 450, height: 14, rx: 4, fill: css('--none') }),
      g('rect', { x: 110, y: 12 + at * 26, width: Math.max(2, x(clamp(row[field], 0, 1)) - 110), height: 14, rx: 4, fill: css(colour[field] ?? '--accent') }),
      g('text', { x: 572, y: 24 + at * 26, class: 'strong' }, percent(row[field]))])));
}

function mountRecord() {
  const body = section('record');
  const chosen = () => current.run();
  body.append(h('div', { class: 'controls', id: 'downloads' },
    RUNS.length > 0 && button('models.csv', () => save('models.csv', 'text/csv', modelsCsv())),
    RUNS.length > 0 && button('examples.csv of the chosen model', () => save('examples.csv', 'text/csv', examplesCsv(chosen()))),
    MODELS.some((model) => Object.keys(model.metrics).length) && button('metrics.csv', () => save('metrics.csv', 'text/csv', metricsCsv())),
    button('everything as JSON', () => save('audit.json', 'application/json', $('#data').textContent))));
  const conditions = CONDITIONS.map((one) => h('tr', {}, h('td', {}, SCORE_LONG[one.score]), h('td', {}, bdi(one.full, 'name')), h('td', {}, bdi(one.retain, 'name')), h('td', { class: 'num' }, one.examples.length),
    h('td', {}, Object.entries(one.settings).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(', '))));
  if (conditions.length) body.append(h('div', { class: 'wrap free' }, h('table', { 'aria-label': 'settings' }, h('thead', {}, h('tr', {}, ['score', 'full', 'retain', 'examples', 'settings'].map((title) => h('th', {}, title)))), h('tbody', {}, conditions))));
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

function modelsCsv() {
  const names = DATA.metric_kinds.map((kind) => kind.name);
  return csv(['model', 'method', 'epoch', 'settings', 'score', 'value', 'low', 'high', 'n', 'n_scored', ...names],
    RUNS.map((run) => [run.info.name, run.info.method, run.info.epoch, run.where.id, run.where.score, run.value, run.low, run.high, run.n, run.n_scored, ...names.map((name) => metricOf(run.info, name))]));
}

function examplesCsv(run) {
  const { layers, examples } = run.where;
  const { s1, s2, scores, baseline } = tables(run);
  const at = (values, row) => layers.map((_, column) => values[row * layers.length + column]);
  return csv(['idx', 'group', 'question', 'entity', run.where.score, 'baseline', ...layers.map((l) => `s1_${l}`), ...layers.map((l) => `s2_${l}`)],
    examples.map((one, row) => [one.idx, one.group, one.question, one.entity, scores[row], baseline?.[row], ...at(s1, row), ...at(s2, row)]));
}

function metricsCsv() {
  return csv(['model', 'metric', 'high_means', 'value', 'low', 'high', 'n_scored', 'n_unscored', 'reason'],
    MODELS.flatMap((model) => DATA.metric_kinds.filter((kind) => model.metrics[kind.name]).map((kind) => [model.name, kind.name, kind.high_means, ...model.metrics[kind.name]])));
}
