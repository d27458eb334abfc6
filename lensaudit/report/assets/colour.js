// Scales of colour: warm is knowledge that is still there, cool is knowledge that is gone.
const RAMPS = {
  light: {
    erasure: ['#bf360c', '#e2764a', '#f2dfc4', '#74b3ab', '#0a5c60'],
    inside: ['#bf360c', '#e2764a', '#f2dfc4', '#ece6da', '#e4dfd6'],
    delta: ['#f6f2ea', '#d9c7dd', '#a57fb8', '#6b3f8c', '#2d1247'],
    match: ['#0a5c60', '#74b3ab', '#f2dfc4', '#e2764a', '#bf360c'],
    difference: ['#7a4a00', '#d9a441', '#f4efe6', '#7fa6d6', '#1d4f91'],
  },
  dark: {
    erasure: ['#ff7a4a', '#b9532f', '#3d3833', '#2b7f7c', '#5fdad2'],
    inside: ['#ff7a4a', '#b9532f', '#3d3833', '#3b3936', '#3a3a39'],
    delta: ['#1f2125', '#43345c', '#7c56a5', '#b78bd8', '#f3e2ff'],
    match: ['#5fdad2', '#2b7f7c', '#3d3833', '#b9532f', '#ff7a4a'],
    difference: ['#f0b94a', '#8a6a2a', '#2b2d30', '#3a6296', '#86b7f5'],
  },
};
const METHOD_HUES = {
  light: ['#3b6fb6', '#b4532a', '#2f8f5b', '#8a4fa3', '#a8842c', '#c2477f', '#4a8f9c', '#6d6a5f', '#5b57c9', '#7b9a3a'],
  dark: ['#86b7f5', '#f09a6f', '#6fcf97', '#c79be0', '#e2c465', '#f08bb8', '#7fd0de', '#b5b0a3', '#a5a1ff', '#bcd873'],
};

let printing = false;
const dark = () => !printing && document.documentElement.dataset.theme === 'dark';
const mode = () => (dark() ? 'dark' : 'light');
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const hexToRgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const lookup = once((key) => {
  const [theme, name] = key.split(' ');
  const stops = RAMPS[theme][name].map(hexToRgb);
  return Array.from({ length: 256 }, (_, at) => {
    const x = (at / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(x), stops.length - 2);
    return `rgb(${stops[low].map((v, c) => Math.round(v + (stops[low + 1][c] - v) * (x - low))).join(' ')})`;
  });
});
const ramp = (name) => lookup(`${mode()} ${name}`);
const shade = (table, share) => table[Math.round(255 * clamp(share, 0, 1))];
const gradient = (name) => `linear-gradient(90deg, ${RAMPS[mode()][name].join(', ')})`;

// Erasure by layer as one element: hard stops, no nodes.
function strip(values, name = 'erasure') {
  const table = ramp(name);
  const none = css('--none');
  const stops = values.map((value, at) => {
    const colour = Number.isFinite(value) ? shade(table, value) : none;
    return `${colour} ${(100 * at) / values.length}% ${(100 * (at + 1)) / values.length}%`;
  });
  return h('span', { class: 'strip', role: 'img', 'aria-label': `by layer: ${values.map((v) => fmt(v, 2)).join(' ')}`,
    style: { background: `linear-gradient(90deg, ${stops.join(', ')})` } });
}

const METHODS = [...new Set(MODELS.map((model) => model.method).filter(Boolean))].sort();
const methodColour = (method) => (method ? METHOD_HUES[mode()][METHODS.indexOf(method) % 10] : css('--muted'));
const wordColour = (value, where) => css({ hidden: '--hidden', 'partly erased': '--partly', erased: '--erased', 'no verdict': '--muted' }[wordOf(value, where)]);
const rampOf = (where) => (inside(where) ? 'inside' : 'erasure');
const runColour = (run) => (run?.verdict ? css({ hidden: '--hidden', 'partly-erased': '--partly', erased: '--erased', 'no-verdict': '--muted' }[WORDS[run.verdict][1]]) : wordColour(run?.value ?? NaN, run?.where ?? {}));
