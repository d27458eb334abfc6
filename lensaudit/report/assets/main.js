// Theme, navigation, and the start.
const THEMES = ['', 'light', 'dark'];
const system = matchMedia('(prefers-color-scheme: dark)');

function applyTheme() {
  const wanted = state.get('theme');
  document.documentElement.dataset.theme = printing ? 'light' : wanted || (system.matches ? 'dark' : 'light');
  const label = `${wanted || 'auto'} theme`;
  $('#theme').textContent = label;
}

function mountTop() {
  state.on(['theme'], applyTheme);
  applyTheme();
  $('#theme').addEventListener('click', () => state.set({ theme: THEMES[(THEMES.indexOf(state.get('theme')) + 1) % 3] }));

  const models = $('#pick-model');
  const drawModels = () => {
    const runs = byScore(current.runs());
    models.hidden = runs.length < 2;
    $('select', models).replaceChildren(...runs.map((run) => h('option', { value: run.label }, `${run.label} ${fmt(run.value, 2)}`)));
    if (current.run()) $('select', models).value = current.run().label;
  };
  $('select', models).addEventListener('change', (event) => state.set({ model: event.target.value, example: null }));
  state.on(['settings', 'model'], drawModels);
  drawModels();

  const settings = $('#pick-condition');
  settings.hidden = CONDITIONS.length < 2;
  $('select', settings).replaceChildren(...CONDITIONS.map((one) => h('option', { value: one.id }, conditionName(one))));
  const follow = () => { $('select', settings).value = current.condition().id; };
  $('select', settings).addEventListener('change', (event) => state.set({ settings: event.target.value }));
  state.on(['settings'], follow);
  follow();
  addEventListener('keydown', (event) => {
    if (event.target.closest('input, select, textarea') || event.ctrlKey || event.metaKey || event.altKey) return;
    const runs = byScore(current.runs());
    const at = runs.indexOf(current.run());
    if (event.key === '[' && at > 0) current.choose(runs[at - 1]);
    if (event.key === ']' && at >= 0 && at < runs.length - 1) current.choose(runs[at + 1]);
  });
}

// What tells this condition from the others of its score; where the settings do not, its rows.
function conditionName(one) {
  const same = CONDITIONS.filter((other) => settingsName(other) === settingsName(one));
  const first = ({ examples }) => examples[0]?.question || examples[0]?.entity || '';
  const told = [(other) => `beside ${other.retain}`, (other) => `${other.layers.length} layers`, (other) => `from “${short(first(other), 40)}”`].filter((of) => new Set(same.map(of)).size > 1);
  const name = (other) => [settingsName(other), ...told.map((of) => of(other))].join(' · ');
  return same.filter((other) => name(other) === name(one)).length > 1 ? `${name(one)} · ${one.id}` : name(one);
}

function settingsName(one) {
  const differs = Object.entries(one.settings).filter(([name, value]) => CONDITIONS.some((other) => other.score === one.score && String(other.settings[name]) !== String(value)) && !['engine', 'profile'].includes(name));
  return [SCORE_NAMES[one.score], `into ${one.full}`, `${one.examples.length} examples`, ...differs.map(([name, value]) => `${name} ${value}`)].join(' · ');
}

function mountNav() {
  const shown = [...document.querySelectorAll('main > section')].filter((one) => !one.hidden && one.dataset.title);
  const go = (id) => (event) => { event.preventDefault(); document.getElementById(id).scrollIntoView(); };
  $('#nav').append(...shown.map((one) => h('a', { href: `#${one.id}`, onclick: go(one.id) }, one.dataset.title)));
  $('.brand').addEventListener('click', go('verdict'));
  $('.skip').addEventListener('click', go('verdict'));
  const seen = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    if (!isIntersecting) return;
    for (const link of $('#nav').children) {
      if (link.getAttribute('href') === `#${target.id}`) link.setAttribute('aria-current', 'true'); else link.removeAttribute('aria-current');
    }
  }), { rootMargin: '-20% 0px -70% 0px' });
  for (const one of [document.getElementById('verdict'), ...shown]) seen.observe(one);
}

function repaint(forPrint) {
  printing = forPrint;
  applyTheme();
  state.repaint();
}

// A part that cannot be drawn says so; the others stay.
for (const [id, mount] of [['nav', mountTop], ['scale', mountScale], ['models', mountModels], ['layers', mountLayers], ['examples', mountExamples],
  ['extremes', mountExtremes], ['categories', mountCategories], ['metrics', mountMetrics], ['kept', mountKept], ['compare', mountCompare], ['meta', mountMeta],
  ['steering', mountSteering], ['curves', mountCurves], ['attacks', mountAttacks], ['record', mountRecord], ['nav', mountNav]]) {
  try {
    mount();
  } catch (error) {
    document.getElementById(id).append(h('p', { class: 'alarm' }, `This part could not be drawn: ${error.message}`));
    console.error(error);
  }
}
system.addEventListener('change', () => repaint(false));
addEventListener('beforeprint', () => repaint(true));
addEventListener('afterprint', () => repaint(false));
document.documentElement.dataset.ready = 'true';
