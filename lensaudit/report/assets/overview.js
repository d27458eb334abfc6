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
    const all = byScore(current.runs());
    if (!all.some((run) => Number.isFinite(run.value))) { box.hidden = true; return; }
    // an anchor that was patched, too, stands once, with its interval
    const runs = all.filter((run) => !isAnchor(run.info));
    const width = widthOf(box, 300) - 40;
    refocus(box, runs.length > 12 ? crowd(runs, condition, width) : forest(runs, condition, width));
  };
  state.on(['settings', 'model', 'theme'], draw);
  addEventListener('resize', draw);
  draw();
}

// Anchors that a scale has: beside another question's stream there is one.
const rolesOf = (condition) => (inside(condition) ? ['full'] : ['full', 'retain']);
const calibrated = (condition, role) => {
  const found = condition.calibration[role];
  return found && typeof found === 'object' ? found.udr : found;
};

// Axis, zones and the two anchors that both forms of the scale share.
function ground(condition, x, top, bottom, runs) {
  const floor = runs.find((run) => run.extra.floor)?.extra.floor ?? condition.scale?.never_saw;
  const anchors = rolesOf(condition).map((role) => [role, calibrated(condition, role)]).filter(([, value]) => Number.isFinite(value));
  const stops = RAMPS[mode()][rampOf(condition)].map((colour, at, all) => g('stop', { offset: at / (all.length - 1), 'stop-color': colour }));
  return [
    g('defs', {}, g('linearGradient', { id: 'ramp' }, stops)),
    floor && g('rect', { x: x(floor[0]), y: top, width: Math.max(2, x(floor[1]) - x(floor[0])), height: bottom - top, fill: css(inside(condition) ? '--muted' : '--erased'), opacity: .16 }, g('title', {}, `models that never saw the facts: ${fmt(floor[0])} to ${fmt(floor[1])}`)),
    [0, 0.25, 0.5, 0.75, 1].map((value) => [
      g('line', { class: 'grid', x1: x(value), x2: x(value), y1: top, y2: bottom }),
      g('text', { x: x(value), y: bottom + 26, 'text-anchor': 'middle' }, value === 0 ? '0' : value === 1 ? '1' : String(value)),
    ]),
    g('rect', { x: x(0), y: bottom, width: x(1) - x(0), height: 7, rx: 3.5, fill: 'url(#ramp)' }),
    g('text', { x: x(0), y: bottom + 43, 'text-anchor': 'start' }, 'held'),
    g('text', { x: x(1), y: bottom + 43, 'text-anchor': 'end' }, inside(condition) ? 'shows nothing' : 'erased'),
    anchors.map(([, value]) => g('rect', { x: x(value) - 1.25, y: bottom - 4, width: 2.5, height: 15, rx: 1, fill: css('--ink') })),
  ];
}

// A component's depth is not that of the whole stream, which the table of models has.
const longName = ({ score, settings }) => `${SCORE_LONG[score]}${['resid', undefined].includes(settings.component) ? '' : ` through ${settings.component} alone`}`;

function forest(runs, condition, width) {
  const longest = Math.max(...runs.map((run) => run.label.length), 11);
  const left = Math.min(width * 0.42, longest * 8 + 22);
  const x = linear(0, 1, left, width - 54);
  const anchors = rolesOf(condition).map((role) => ({ ...current.runs().find((run) => run.info.name === condition[role] && Math.abs(run.value - calibrated(condition, role)) < 1e-4), anchor: role, value: calibrated(condition, role) }));
  const rows = [...anchors, ...runs];
  const step = runs.length > 8 ? 27 : 33;
  const y = (at) => 20 + at * step + (at >= anchors.length ? 10 : 0);
  const bottom = y(rows.length - 1) + 24;
  const letters = Math.floor((left - 14) / 8);
  const row = (one, at) => {
    const there = Number.isFinite(one.value);
    if (one.anchor) return [
      g('text', { x: left - 14, y: y(at) + 4, 'text-anchor': 'end' }, one.anchor),
      Number.isFinite(one.low) && g('line', { x1: x(one.low), x2: x(one.high), y1: y(at), y2: y(at), stroke: css('--ink'), 'stroke-width': 5, 'stroke-linecap': 'round', opacity: .18 }),
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
  return h('div', {}, canvas(width, bottom + 48, `${longName(condition)} of ${runs.length} models`, ground(condition, x, 8, bottom, runs), rows.map(row)),
    h('figcaption', {}, `${longName(condition)}${runs.some((run) => Number.isFinite(run.low)) ? `, with 95 % intervals by ${condition.unit}s` : ''}${runs.some((run) => !Number.isFinite(run.low) && run.why) ? '; a model without one has too few' : ''}. ◇ ${inside(condition) ? 'full: the end of the scale. Shaded: scores of models that never saw the facts' : 'anchors: what calibrates the scale'}.`));
}

const runLines = (run) => [
  h('b', {}, bdi(run.label)),
  h('span', { class: 'row' }, `${SCORE_NAMES[run.where.score]} ${fmt(run.value)}${Number.isFinite(run.low) ? `, ${fmt(run.low)} to ${fmt(run.high)}` : run.why ? ` (${run.why})` : ''}; ${run.n_scored} of ${run.n} scored`),
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
  return h('div', {}, canvas(width, bottom + 48, `${longName(condition)} of ${runs.length} models`, ground(condition, x, 4, bottom, runs), dots),
    h('figcaption', {}, `${longName(condition)} of ${runs.length} models; click one to look at it. The bars at the ends are ${rolesOf(condition).join(' and ')} as sources.`));
}

const FIRST_METRICS = ['overall', 'mem', 'privacy', 'utility_rel', 'model_utility', 'forget_Q_A_Prob', 'forget_Q_A_ROUGE', 'forget_quality', 'mia_min_k', 'extraction_strength'];

// The table stands in the page; the script sorts it, filters it and opens its verdicts.
function mountModels() {
  const table = $('#models table');
  if (!table) return;
  const controls = $('#models .controls');
  const all = [...table.tBodies];
  const anchors = all.filter((body) => body.classList.contains('anchor'));
  const rows = all.filter((body) => !anchors.includes(body));
  const heads = [...table.tHead.rows[0].cells];
  // a model that was asked in two ways has a row for each
  const counted = (bodies) => new Set(bodies.map((body) => body.dataset.model)).size;
  const value = (body, column) => (column === 0 ? body.rows[0].cells[0].textContent : Number(body.rows[0].cells[column].dataset.v ?? NaN));
  for (const head of heads) {
    head.replaceChildren(button(head.textContent, () => {
      const [by, way] = state.get('sort', 'uds asc').split(' ');
      state.set({ sort: `${head.dataset.by} ${by === head.dataset.by && way === 'asc' ? 'desc' : 'asc'}` });
    }, { 'data-sort': head.dataset.by, title: head.title }));
  }
  for (const body of all) {
    const info = MODELS[body.dataset.model];
    const name = $('th bdi', body);
    const run = () => current.runs().find((one) => one.info === info);
    if (rows.includes(body) && RUNS.some((one) => one.info === info)) name.replaceWith(h('button', { type: 'button', class: 'link', 'data-name': info.label, onclick: () => run() && current.choose(run()) }, name.cloneNode(true)));
    const chips = anchors.includes(body) ? [] : [info?.method, info?.epoch && `epoch ${info.epoch}`].filter(Boolean);
    if (chips.length) $('th', body).append(h('small', {}, chips.join(' · ')));
    const word = $('.verdict span', body);
    const why = $('.why', body);
    if (!word || !why) continue;
    const details = $('details', why);
    const opened = (open) => { details.open = open; why.hidden = !open; node.setAttribute('aria-expanded', String(open)); };
    const node = button(word.textContent, () => opened(!details.open), { class: `link ${word.className}`, 'data-name': `verdict of ${info?.label}` });
    details.addEventListener('toggle', () => opened(details.open));
    word.replaceWith(node);
    opened(false);
  }
  const draw = () => {
    const [by, way] = state.get('sort', 'uds asc').split(' ');
    const column = heads.findIndex((head) => head.dataset.by === by);
    for (const [at, head] of heads.entries()) {
      if (at === column) head.setAttribute('aria-sort', way === 'desc' ? 'descending' : 'ascending'); else head.removeAttribute('aria-sort');
    }
    const { at } = current.condition();
    const own = rows.some((body) => body.dataset.condition === String(at));
    const here = rows.filter((body) => !own || [undefined, String(at)].includes(body.dataset.condition));
    const sorted = column < 0 ? here : inOrder(here, (body) => value(body, column), way);
    const methods = sorted.filter((body) => matches(MODELS[body.dataset.model])).map((body) => MODELS[body.dataset.model].method ?? body);
    const shown = sorted.filter((body) => matches(MODELS[body.dataset.model])).filter((_, place) => !state.get('first') || methods.indexOf(methods[place]) === place);
    for (const body of rows) body.hidden = !shown.includes(body);
    const wanted = [...anchors, ...shown];
    if (wanted.some((body, place) => table.tBodies[place] !== body)) refocus(table, table.tHead, ...wanted, ...rows.filter((body) => body.hidden));
    for (const body of rows) body.classList.toggle('chosen', current.run()?.info === MODELS[body.dataset.model]);
    $('.count', controls).textContent = `${counted(shown)} of ${counted(here)} models`;
  };
  const redrawControls = () => { drawModelControls(controls); draw(); };
  state.on(['sort', 'q', 'method', 'epoch', 'model'], draw);
  state.on(['settings', 'first'], redrawControls);
  redrawControls();
}

function matches(info) {
  const [wanted, methods, epochs] = [state.get('q').toLowerCase(), state.list('method'), state.list('epoch')];
  return (!wanted || `${info.label} ${info.name} ${info.method ?? ''}`.toLowerCase().includes(wanted))
    && (!methods.length || methods.includes(info.method ?? 'other')) && (!epochs.length || epochs.includes(info.epoch ?? '–'));
}
const filtered = () => current.runs().filter(({ info }) => matches(info));

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
    h('span', { class: 'count', 'aria-live': 'polite' }),
  ].filter(Boolean));
}
