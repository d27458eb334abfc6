// The results. Tables stay packed until something looks at them.
const DATA = JSON.parse($('#data').textContent);

const bytes = (text) => {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) out[at] = raw.charCodeAt(at);
  return out;
};
const once = (make) => {
  const kept = new Map();
  return (key) => {
    if (!kept.has(key)) kept.set(key, make(key));
    return kept.get(key);
  };
};

const floats = (text) => new Float32Array(bytes(text).buffer);
// Of rows of this width: 16 bits a number, then a byte a row for its largest.
const rooted = (text, width) => {
  const all = bytes(text);
  const n = all.length / (2 * width + 1);
  const largest = Float64Array.from(all.subarray(2 * width * n), (size) => 2 ** (size / 8 - 12));
  return Float32Array.from(new Int16Array(all.buffer, 0, width * n), (v, at) => (v === -32768 ? NaN : largest[Math.floor(at / width)] * (v / 32767) * Math.abs(v / 32767)));
};
const shares = (text) => Float32Array.from(bytes(text), (v) => (v === 255 ? NaN : v / 254));

const LIMITS = DATA.limits;
// Word of a verdict -> how it is said of one model, and its tone.
const WORDS = DATA.words;
const MODELS = DATA.models;
const MEASURED = MODELS.filter((model) => Object.keys(model.metrics).length);
const metricOf = (model, name) => model.metrics[name]?.[0] ?? NaN;
// In what a model was asked otherwise than another, as far as both results say.
const asked = (model) => DATA.asked?.[MODELS.indexOf(model)] ?? {};
const askedOtherwise = (model, other) => Object.keys(asked(model)).filter((name) => name in asked(other) && asked(model)[name] !== asked(other)[name]);
const isAnchor = (model) => ['full', 'retain'].includes(model.role);
const named = (role) => MEASURED.find((model) => model.role === role);

// With tables of examples there are runs; without, every model that has a UDS stands for one.
const HAS_TABLES = DATA.depths.length > 0;
const WITHOUT = { id: 'none', score: 'uds', full: 'full', retain: 'retain', settings: {}, layers: [], examples: [],
  calibration: Object.fromEntries(['full', 'retain'].filter(named).map((role) => [role, metricOf(named(role), 'uds')])) };
const CONDITIONS = (HAS_TABLES ? DATA.conditions : [WITHOUT]).map((one, at) => ({ ...one, at }));
const ALL_RUNS = HAS_TABLES
  ? DATA.depths.map((one, at) => ({ ...one, at, label: MODELS[one.model].label, info: MODELS[one.model], where: CONDITIONS[one.condition] }))
  : MEASURED.filter((model) => !isAnchor(model)).map((info, at) => ({
    at, label: info.label, info, model: MODELS.indexOf(info), condition: 0, where: CONDITIONS[0], value: metricOf(info, 'uds'),
    profile: {}, extra: {}, unscored: {}, n: 0, n_scored: 0,
  }));
// A model that was asked or aligned in several ways has one depth: the run whose word counts is drawn, the table has them all.
const drawn = (run) => {
  const same = ALL_RUNS.filter((one) => one.condition === run.condition && one.model === run.model);
  return run === (same.find((one) => one.verdict === one.info.word) ?? same[0]);
};
const RUNS = ALL_RUNS.filter(drawn);

const sharedTables = once((condition) => ({
  s1: condition.score === 'em' ? shares(condition.s1) : floats(condition.s1),
  baseline: condition.baseline ? floats(condition.baseline) : null,
}));

// S1 is float32: as large as tau is not above it.
const tauOf = ({ settings }) => Math.fround(settings.tau);
// Everything per example of one run; erasure is derived, as in the formula.
const tables = once((run) => {
  const { s1, baseline } = sharedTables(run.where);
  const s2 = run.where.score === 'em' ? shares(run.s2) : rooted(run.s2, run.where.layers.length);
  const scores = floats(run.scores);
  const erasure = new Float32Array(s1.length).fill(NaN);
  if (run.where.score !== 'em') {
    const tau = tauOf(run.where);
    for (let at = 0; at < s1.length; at += 1) if (s1[at] > tau) erasure[at] = clamp(s2[at] / s1[at], 0, 1);
  }
  const reasons = new Map(Object.entries(run.unscored).flatMap(([why, idx]) => idx.map((one) => [one, why])));
  return { s1, s2, baseline, scores, erasure, reasons };
});

// A row that names no author stands for itself: its group is its number.
const authorOf = (example) => (example.group && !example.group.startsWith('idx ') ? `author ${example.group}` : '');
const runsOf = (condition) => RUNS.filter((run) => run.condition === condition.at);
const byScore = (runs) => [...runs].sort((a, b) => (a.value ?? 9) - (b.value ?? 9));
// Nearest the middle of the scale first: the map of such a model shows both ends of the colours.
const byMiddle = (runs) => [...runs].sort((a, b) => isAnchor(a.info) - isAnchor(b.info) || Math.abs((a.value ?? 9) - 0.5) - Math.abs((b.value ?? 9) - 0.5));
const SCORE_NAMES = { uds: 'UDS', lens: 'Lens depth', em: 'UDR', counterfactual: 'Depth' };
const SCORE_LONG = { uds: 'Unlearning Depth Score', lens: 'Logit Lens depth', em: 'exact match', counterfactual: 'Depth beside another question’s stream' };
// Beside another question's stream a high depth shows nothing.
const inside = (where) => where.score === 'counterfactual';
const wordOf = (value, where) => (!Number.isFinite(value) ? 'no verdict' : value < LIMITS.hidden_below ? 'hidden' : inside(where) ? 'no verdict' : value >= LIMITS.erased_from ? 'erased' : 'partly erased');
const wordClass = (value, where) => `word-${wordOf(value, where).replace(' ', '-')}`;

const place = once((condition) => new Map(condition.examples.map((one, at) => [one.idx, at])));
// A text that one of two results did not keep is not compared.
const alike = (one, other, same = (a, b) => a === b) => !one || !other || same(one, other);
// Place of an example in another condition. Two sets of rows may share numbers: question and entity are compared.
function rowOf(where, example) {
  const at = place(where).get(example.idx);
  const other = where.examples[at];
  return other && alike(other.question, example.question) && alike(other.entity, example.entity) ? at : undefined;
}
// Of the runs of the same model that are wanted, the one with the most of this run's rows, and any.
function beside(run, wanted) {
  const found = RUNS.filter((one) => one.model === run.model && wanted(one))
    .map((one) => [one, run.where.examples.filter((example) => rowOf(one.where, example) !== undefined).length]);
  return found.filter(([, n]) => n > 0).sort(([, a], [, b]) => b - a)[0]?.[0];
}
// The EM run of the same model, where one was made.
const emOf = once((run) => beside(run, (one) => one.where.score === 'em'));
// The run that read this model token by token: this one, or that of its lens.
const readOf = once((run) => (run.extra.tokens ? run : beside(run, (one) => one.extra.tokens)));
// Attacks of a kind that asked this model for these rows; joined by weights, by name where none are known.
const attacksOn = (run, kind) => DATA.attacks.filter((one) => one.kind === kind
  && [run.info.weights, run.info.name].includes(one.weights) && one.conditions.includes(run.where.at));
// Whether such a result means this fact by its number: the entity may be told with more or fewer words.
const isAbout = (result, example) => alike(result.asked[example.idx], example.entity, (a, b) => a.includes(b) || b.includes(a));
