// Moving among prompts, rollouts and tokens; the search; the marked token.

function step(by) {
  const next = listed[Math.max(0, Math.min(listed.length - 1, listed.indexOf(chosen) + by))];
  if (next && next !== chosen) choose(next);
}

function stepCard(by) {
  const now = state.cards.findIndex((one) => one.element.contains(document.activeElement));
  const next = state.cards[now < 0 ? 0 : Math.max(0, Math.min(state.cards.length - 1, now + by))];
  next?.element.focus();
  next?.element.scrollIntoView({ block: "nearest", inline: "nearest" });
}

// From token to token, across the blocks of a rollout.
function stepToken(span, by) {
  const { spans } = state.cards.find((one) => one.text.contains(span));
  spans[Number(span.dataset.i) + by]?.focus();
}

async function search(query) {
  state.query = query = query.toLowerCase();
  if (!query) { state.found = null; return filterPrompts(); }
  const found = new Set(records.groups.filter((group) => group.prompt.toLowerCase().includes(query)).map((group) => group.index));
  state.found = found;
  filterPrompts();
  for (const group of records.groups) {
    if (found.has(group.index)) continue;
    if (group.texts === undefined) {
      say(`${listed.length} prompts, searching completions (${group.index} of ${records.groups.length})`);
      const rollouts = await records.rolloutsOf(group);
      group.texts = rollouts.map(({ texts }) => texts.map((text) => records.head.texts[text]).join("")).join("\0").toLowerCase();
    }
    if (state.query !== query) return;
    if (group.texts.includes(query)) found.add(group.index);
  }
  filterPrompts();
}

async function hasMarked(group) {
  const rollouts = await records.rolloutsOf(group);
  return rollouts.some(({ texts }) => texts.some((text) => records.head.texts[text] === state.marked));
}

async function mark(token) {
  state.marked = token;
  view("prompts");
  if (chosen && (await hasMarked(chosen))) showMarked();
  else await nextMarked();
}

async function nextMarked() {
  if (state.marked === null) return;
  const at = listed.indexOf(chosen);
  for (const group of [...listed.slice(at + 1), ...listed.slice(0, at)]) if (await hasMarked(group)) return choose(group);
  showMarked();
}

function showMarked() {
  let count = 0, first = null;
  for (const one of state.cards) {
    for (const span of one.spans) {
      const isIt = state.marked !== null && records.textAt(one.tokens, span.dataset.i) === state.marked;
      span.classList.toggle("mark", isIt);
      count += isIt;
      first ??= isIt ? span : null;
    }
  }
  const box = $("marked"), name = make("b");
  box.hidden = state.marked === null;
  if (box.hidden) return;
  writeText(name, state.marked.slice(0, 60), true);
  const clear = makeButton("clear", () => { state.marked = null; showMarked(); });
  box.replaceChildren(name, ` ${count} times in this prompt`, makeButton("next prompt (n)", nextMarked), clear);
  first?.scrollIntoView({ block: "nearest", inline: "nearest" });
}
