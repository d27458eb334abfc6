// The scale with every model on it, and the table of models.
const section = (id) => {
  const node = document.getElementById(id);
  node.hidden = false;
  return $('.body', node);
};

function mountScale() {
  const box = $('#scale');
  const draw = () => {
    const condition = current.condition();
    const runs = byScore(current.runs());
    if (!runs.some((run) => Number.isFinite(run.value))) { box.hidden = true; return; }
    const width = widthOf(box, 300) - 40;
    refocus(box, runs.length > 12 ? crowd(runs, condition, width) : forest(runs, condition, width));
  };
  state.on(['settings', 'model', 'theme'], draw);
  addEventListener('resize', draw);
  draw();
}

const calibrated = (condition, role) => {
  const found = condition.calibration[role];
  return found && typeof found === 'object' ? found.udr : found;
};

// Axis, zones and the two anchors that both forms of the scale share.
function ground(condition, x, top, bottom, runs) {
  const floor = runs.find((run) => run.extra.floor)?.extra.floor;
  const anchors = ['full', 'retain'].map((role) => [role, calibrated(condition, role)]).filter(([, value]) => Number.isFinite(value));
  const stops = RAMPS[mode()].erasure.map((colour, at, all) => g('stop', { offset: at / (all.length - 1), 'stop-color': colour }));
  return [
    g('defs', {}, g('linearGradient', { id: 'ramp' }, stops)),
    floor && g('rect', { x: x(floor[0]), y: top, width: Math.max(2, x(floor[1]) - x(floor[0])), height: bottom - top, fill: css('--erased'), opacity: .16 }, g('title', {}, `models that never saw the facts: ${fmt(floor[0])} to ${fmt(floor[1])}`)),
    [0, 0.25, 0.5, 0.75, 1].map((value) => [
      g('line', { class: 'grid', x1: x(value), x2: x(value), y1: top, y2: bottom }),
      g('text', { x: x(value), y: bottom + 26, 'text-anchor': 'middle' }, value === 0 ? '0' : value === 1 ? '1' : String(value)),
    ]),
    g('rect', { x: x(0), y: bottom, width: x(1) - x(0), height: 7, rx: 3.5, fill: 'url(#ramp)' }),
    g('text', { x: x(0), y: bottom + 43, 'text-anchor': 'start' }, 'intact'),
    g('text', { x: x(1), y: bottom + 43, 'text-anchor': 'end' }, 'erased'),
    anchors.map(([, value]) => g('rect', { x: x(value) - 1.25, y: bottom - 4, width: 2.5, height: 15, rx: 1, fill: css('--ink') })),
  ];
}

function forest(runs, condition, width) {
  const longest = Math.max(...runs.map((run) => run.label.length), 11);
  const left = Math.min(width * 0.42, longest * 8 + 22);
  const x = linear(0, 1, left, width - 54);
  const anchors = ['full', 'retain'].map((role) => ({ anchor: role, value: calibrated(condition, role) }));
  const rows = [...anchors, ...runs];
  const step = runs.length > 8 ? 27 : 33;
  const y = (at) => 20 + at * step + (at > 1 ? 10 : 0);
  const bottom = y(rows.length - 1) + 24;
  const letters = Math.floor((left - 14) / 8);
  const row = (one, at) => {
    const there = Number.isFinite(one.value);
    if (one.anchor) return [
      g('text', { x: left - 14, y: y(at) + 4, 'text-anchor': 'end' }, one.anchor),
      there && g('rect', { x: x(one.value) - 5, y: y(at) - 5, width: 10, height: 10, fill: css('--card'), stroke: css('--ink'), 'stroke-width': 1.6, transform: `rotate(45 ${x(one.value)} ${y(at)})` }),
      g('text', { x: width, y: y(at) + 4, 'text-anchor': 'end' }, fmt(one.value)),
    ];
    const colour = runColour(one);
    const picked = one === current.run();
    const line = g('g', {},
      g('rect', { class: 'hit', x: 0, y: y(at) - step / 2, width, height: step, rx: 6, style: picked ? { fill: css('--faint') } : {} }),
      g('text', { x: left - 14, y: y(at) + 4, 'text-anchor': 'end', class: 'strong' }, short(one.label, letters)),
      Number.isFinite(one.low) && g('line', { x1: x(one.low), x2: x(one.high), y1: y(at), y2: y(at), stroke: colour, 'stroke-width': 5, 'stroke-linecap': 'round', opacity: .38 }),
      there && g('circle', { class: 'dot', cx: x(one.value), cy: y(at), r: 6.5, fill: colour }),
      g('text', { x: width, y: y(at) + 4, 'text-anchor': 'end', class: 'strong' }, fmt(one.value)));
    return hover(press(line, `${one.label}: ${SCORE_NAMES[condition.score]} ${fmt(one.value)}, show it`, () => current.choose(one)), () => runLines(one));
  };
  return h('div', {}, canvas(width, bottom + 48, `${SCORE_LONG[condition.score]} of ${runs.length} models`, ground(condition, x, 8, bottom, runs), rows.map(row)),
    h('figcaption', {}, `${SCORE_LONG[condition.score]}, with 95 % intervals by authors${runs.some((run) => !Number.isFinite(run.low) && run.why) ? '; a model without one has too few' : ''}. ◇ anchors: what calibrates the scale.`));
}

const runLines = (run) => [
  h('b', {}, bdi(run.label)),
  h('span', { class: 'row' }, `${SCORE_NAMES[run.where.score]} ${fmt(run.value)}${Number.isFinite(run.low) ? `, ${fmt(run.low)} to ${fmt(run.high)}` : ''}; ${run.n_scored} of ${run.n} scored`),
  run.because && h('span', { class: 'row' }, run.because),
].filter(Boolean);

// Many models: one lane per method, dots pushed apart so that none hides another.
function crowd(runs, condition, width) {
  const lanes = METHODS.length > 1 ? [...METHODS, null].filter((m) => runs.some((run) => (run.info.method ?? null) === m)) : [undefined];
  const left = lanes.length > 1 ? 84 : 14;
  const x = linear(0, 1, left, width - 12);
  const lane = lanes.length > 1 ? Math.max(30, Math.min(44, 380 / lanes.length)) : 150;
  const radius = runs.length > 400 ? 2.6 : 4.6;
  const bottom = 14 + lanes.length * lane;
  const dots = lanes.map((method, at) => {
    const middle = 14 + (at + 0.5) * lane;
    const placed = [];
    return [
      lanes.length > 1 && g('text', { x: left - 14, y: middle + 4, 'text-anchor': 'end', class: 'strong' }, short(method ?? 'other', 10)),
      runs.filter((run) => Number.isFinite(run.value) && (method === undefined || (run.info.method ?? null) === method)).map((run) => {
        const cx = x(run.value);
        let offset = 0;
        for (let tries = 0; tries < 40; tries += 1) {
          offset = (tries % 2 ? 1 : -1) * Math.ceil(tries / 2) * radius * 0.9;
          if (Math.abs(offset) > lane / 2 - radius) break;
          if (!placed.some(([px, po]) => Math.hypot(px - cx, po - offset) < radius * 1.75)) break;
        }
        offset = clamp(offset, -(lane / 2 - radius), lane / 2 - radius);
        placed.push([cx, offset]);
        const picked = run === current.run();
        const dot = g('circle', { class: 'dot', cx, cy: middle + offset, r: picked ? radius + 2.5 : radius, fill: runColour(run), style: { cursor: 'pointer', ...(picked ? { stroke: css('--ink') } : { 'stroke-width': '.6' }) }, onclick: () => current.choose(run) });
        return hover(dot, () => runLines(run));
      }),
    ];
  });
  return h('div', {}, canvas(width, bottom + 48, `${SCORE_LONG[condition.score]} of ${runs.length} models`, ground(condition, x, 4, bottom, runs), dots),
    h('figcaption', {}, `${SCORE_LONG[condition.score]} of ${runs.length} models; click one to look at it. The bars at the ends are full and retain as sources.`));
}

const FIRST_METRICS = ['overall', 'mem', 'privacy', 'utility_rel', 'model_utility', 'forget_Q_A_Prob', 'forget_Q_A_ROUGE', 'forget_quality', 'mia_min_k', 'extraction_strength'];
const metricsThere = once((condition) => DATA.metric_kinds.filter(({ name }) => runsOf(condition).some((run) => Number.isFinite(metricOf(run.info, name)))));

function mountModels() {
  if (!RUNS.length) return;
  const body = section('models');
  const controls = h('div', { class: 'controls' });
  const box = h('div', { class: 'wrap', tabindex: '-1' });
  body.append(controls, box);

  const draw = () => {
    const condition = current.condition();
    const shown = filtered();
    const table = sortable({
      columns: columnsOf(condition), rows: shown, pinned: anchorsOf(condition),
      sort: state.get('sort', 'value asc').split(' '),
      onsort: (id, way) => state.set({ sort: `${id} ${way}` }),
      label: 'models', firstOf: state.get('first') && ((run) => run.info.method ?? run.label), rowClass: (run) => (run === current.run() ? 'chosen' : null),
    });
    refocus(box, table.node);
    $('.count', controls).textContent = `${table.sorted.length} of ${current.runs().length} models`;
  };
  const redrawControls = () => { drawModelControls(controls); draw(); };
  state.on(['sort', 'q', 'method', 'epoch', 'model', 'columns', 'theme'], draw);
  state.on(['settings', 'first'], redrawControls);
  redrawControls();
}

function filtered() {
  const [wanted, methods, epochs] = [state.get('q').toLowerCase(), state.list('method'), state.list('epoch')];
  return current.runs().filter(({ info, label }) =>
    (!wanted || `${label} ${info.name} ${info.method ?? ''}`.toLowerCase().includes(wanted))
    && (!methods.length || methods.includes(info.method ?? 'other')) && (!epochs.length || epochs.includes(info.epoch ?? '–')));
}

function drawModelControls(controls) {
  const runs = current.runs();
  const menu = (name, title, values) => values.length > 1 && h('details', { class: 'menu' }, h('summary', {}, title),
    h('div', { class: 'inner' }, values.map(([value, text]) => h('label', {}, h('input', {
      type: 'checkbox', name: `${name}-${value}`, checked: state.list(name).includes(value),
      onchange: (event) => {
        const kept = state.list(name).filter((one) => one !== value);
        state.set({ [name]: [...kept, ...(event.target.checked ? [value] : [])].join('|') });
      },
    }), text))));
  const counted = (read) => [...new Set(runs.map(read))].sort((a, b) => String(a).localeCompare(String(b), 'en', { numeric: true }))
    .map((value) => [value, `${value} (${runs.filter((run) => read(run) === value).length})`]);
  refocus(controls, ...[
    runs.length > 6 && h('input', { type: 'search', placeholder: 'Filter by name', 'aria-label': 'Filter models by name', value: state.get('q'), oninput: (event) => state.set({ q: event.target.value }) }),
    menu('method', 'Methods', counted((run) => run.info.method ?? 'other')),
    menu('epoch', 'Epochs', counted((run) => run.info.epoch ?? '–')),
    METHODS.length > 1 && runs.length > 12 && segments('which models', [['', 'all'], ['1', 'first of each method']], state.get('first'), (first) => state.set({ first })),
    menu('columns', 'Columns', metricsThere(current.condition()).map(({ name }) => [name, name])),
    h('span', { class: 'count', 'aria-live': 'polite' }),
  ].filter(Boolean));
}

function columnsOf(condition) {
  const runs = runsOf(condition);
  const score = SCORE_NAMES[condition.score];
  const chosen = state.get('columns') ? state.list('columns') : FIRST_METRICS.filter((name) => metricsThere(condition).some((kind) => kind.name === name)).slice(0, HAS_TABLES ? 2 : 6);
  const layer = condition.score === 'em' ? 's2_em' : 'erasure';
  return [
    { id: 'label', title: 'Model', value: (run) => run.label, cell: (run) => (run.anchor
      ? bdi(run.label) : h('button', { type: 'button', class: 'link', 'data-name': run.label, onclick: () => current.choose(run) }, bdi(run.label))) },
    runs.some((run) => run.info.method) && { id: 'method', title: 'Method', value: (run) => run.info.method ?? null, cell: (run) => run.info?.method && h('span', { class: 'chip' }, run.info.method) },
    runs.some((run) => run.info.epoch) && { id: 'epoch', title: 'Epochs', num: true, value: (run) => Number(run.info.epoch ?? NaN), cell: (run) => run.info?.epoch },
    { id: 'value', title: score, num: true, help: SCORE_LONG[condition.score], value: (run) => run.value, cell: (run) => h('b', { class: run.anchor ? null : runClass(run) }, fmt(run.value)) },
    HAS_TABLES && { id: 'interval', title: '95 % interval', cell: (run) => (run.anchor ? 'calibration' : interval(run)) },
    condition.score === 'uds' && { id: 'word', title: 'Verdict', cell: (run) => (run.verdict && !isAnchor(run.info) ? h('span', { class: runClass(run), title: run.because }, WORDS[run.verdict][0]) : '') },
    HAS_TABLES && { id: 'scored', title: 'Scored', num: true, value: (run) => run.n_scored, cell: (run) => (run.anchor ? '' : `${run.n_scored}/${run.n}`) },
    HAS_TABLES && { id: 'strip', title: condition.score === 'em' ? 'Still said, by layer' : 'Erasure by layer', cell: (run) => (run.anchor || !run.profile[layer] ? '' : strip(run.profile[layer], condition.score === 'em' ? 'match' : 'erasure')) },
    runs.some((run) => Number.isFinite(run.extra.aligned)) && { id: 'aligned', title: 'Aligned', num: true, help: 'UDS after a linear map, fitted on neutral text, to the basis of full', value: (run) => run.extra.aligned, cell: (run) => (run.anchor ? '' : fmt(run.extra.aligned)) },
    runs.some((run) => Number.isFinite(run.extra.d_share)) && { id: 'd_share', title: 'Unread', num: true, help: 'Drop on facts the model still says, in units of what a stream that does not fit makes; above 0.1 full cannot read this model', value: (run) => run.extra.d_share, cell: (run) => (run.anchor ? '' : fmt(run.extra.d_share)) },
    runs.some((run) => Number.isFinite(run.extra.says)) && { id: 'says', title: 'Says', num: true, help: 'Share of facts it says exactly after the prefix', value: (run) => run.extra.says, cell: (run) => (run.anchor ? '' : fmt(run.extra.says)) },
    runs.some((run) => Number.isFinite(run.extra.lens)) && { id: 'lens', title: 'Lens', num: true, help: 'Logit Lens depth', value: (run) => run.extra.lens, cell: (run) => (run.anchor ? '' : fmt(run.extra.lens)) },
    ...chosen.map((name) => ({ id: name, title: name.replaceAll('_', ' '), help: name, num: true, value: (run) => metricOf(run.info, name), cell: (run) => brief(metricOf(run.info ?? { metrics: {} }, name)) })),
  ].filter(Boolean);
}

function anchorsOf(condition) {
  return ['full', 'retain'].map((role) => ({
    anchor: role, label: condition[role] === role ? role : `${role} · ${condition[role]}`, value: calibrated(condition, role), n: 0, n_scored: 0, profile: {}, extra: {}, verdict: null,
    info: MODELS.find((model) => model.name === condition[role]) ?? named(role) ?? { metrics: {} },
  }));
}

function interval(run) {
  if (!Number.isFinite(run.low)) return run.why ? h('span', { class: 'gone' }, bdi(run.why)) : '–';
  const x = linear(0, 1, 4, 76);
  const colour = runColour(run);
  return h('span', { style: { display: 'inline-flex', gap: '.7rem', 'align-items': 'center', 'white-space': 'nowrap' } },
    g('svg', { width: 80, height: 12, 'aria-hidden': 'true' },
      g('line', { x1: 4, x2: 76, y1: 6, y2: 6, class: 'axis' }),
      g('line', { x1: x(run.low), x2: x(run.high), y1: 6, y2: 6, stroke: colour, 'stroke-width': 4, 'stroke-linecap': 'round', opacity: .4 }),
      g('circle', { cx: x(run.value), cy: 6, r: 3.6, fill: colour })),
    h('span', { class: 'muted' }, `${fmt(run.low)} to ${fmt(run.high)}`));
}
