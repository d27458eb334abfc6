// What is chosen lives in the address, so that a link shows what its sender saw.
const state = (() => {
  const now = new Map();
  const listeners = [];
  const read = () => {
    now.clear();
    const text = location.hash.slice(1);
    if (text.includes('=')) for (const [key, value] of new URLSearchParams(text)) now.set(key, value);
  };
  const write = () => {
    const text = new URLSearchParams([...now].sort()).toString();
    history.replaceState(null, '', `#${text}`);
  };
  const tell = (keys) => listeners.forEach(([wanted, call]) => {
    if (wanted.length === 0 || wanted.some((key) => keys.includes(key))) call();
  });
  addEventListener('hashchange', () => {
    if (!location.hash.includes('=')) return;
    const before = [...now.keys()];
    read();
    tell([...new Set([...before, ...now.keys()])]);
  });
  read();
  return {
    get: (key, otherwise = '') => now.get(key) ?? otherwise,
    list: (key) => (now.get(key) ? now.get(key).split('|') : []),
    set(changes) {
      const keys = Object.keys(changes).filter((key) => (now.get(key) ?? '') !== String(changes[key] ?? ''));
      if (!keys.length) return;
      for (const key of keys) {
        if (changes[key] === null || changes[key] === undefined || changes[key] === '') now.delete(key);
        else now.set(key, String(changes[key]));
      }
      write();
      tell(keys);
    },
    on(keys, call) { listeners.push([keys, call]); },
    repaint: () => tell(['theme']),
  };
})();

// The condition, the run and the run it is compared with.
const current = {
  condition: () => CONDITIONS.find((one) => one.id === state.get('settings')) || CONDITIONS[0],
  runs: () => runsOf(current.condition()),
  run() {
    const runs = current.runs();
    return runs.find((run) => run.label === state.get('model')) || byMiddle(runs)[0];
  },
  other() {
    const runs = current.runs().filter((run) => run !== current.run());
    return runs.find((run) => run.label === state.get('with')) || byScore(runs).at(-1);
  },
  choose(run) { state.set({ model: run.label, example: null }); },
};
