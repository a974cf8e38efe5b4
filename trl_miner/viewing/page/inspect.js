// The view "Prompts", the keys, and the start.

const KEYS = [
  ["j k", "next, previous prompt"], ["l h", "next, previous rollout (or arrows)"],
  ["Enter", "from a rollout into its tokens; there arrows move, Escape leaves"],
  ["1 2 3 4", "show or hide prompts that are all right, mixed, all wrong, unscorable"], ["/", "search; Escape leaves"], ["n", "next prompt with the marked token"],
  ["v", "next view"], ["?", "these keys"],
];
const ALL_AT_ONCE = 20000; // tokens; the rest of a prompt follows frame by frame
const SHORT = 120; // tokens of a rollout
// A browser lays out long lines slowly: so many tokens are a block of their own, from a newline on or, without one, anyhow.
const LONG = 200, LONGEST = 1500;
const $ = (id) => document.getElementById(id);
const records = new Records();
const state = { kinds: new Set(Object.keys(KIND_NAMES)), step: "", query: "", found: null, marked: null, cards: [], turn: 0 };
let listed = [], chosen = null, table = null;

function mean(group) { return group.reward === null ? -Infinity : Number(group.reward); }

function filterPrompts() {
  const orders = { step: (a, b) => a.index - b.index, credit: (a, b) => b.credit - a.credit, reward: (a, b) => mean(b) - mean(a) };
  listed = records.groups.filter((group) => state.kinds.has(group.kind) && (state.step === "" || group.step === Number(state.step))
    && (state.found === null || state.found.has(group.index)));
  listed.sort(orders[$("order").value] ?? orders.step);
  $("list").replaceChildren(...listed.map(item));
  say(`${listed.length.toLocaleString("en")} of ${records.groups.length.toLocaleString("en")} prompts`);
  if (listed.length && !listed.includes(chosen)) choose(listed[0]);
  else markChosen();
}

// The user's last turn of a chat, as common templates mark it; a prompt without one as it is.
function userTurn(prompt) {
  const turns = [...prompt.matchAll(/(?:^|\n|>)user(?:<\|end_header_id\|>|:)?\s+([^]*?)(?=<\||<end_of_turn>|\nassistant\b|$)/gi)];
  return (turns.at(-1)?.[1] || prompt).trim();
}

function say(text) { $("count").textContent = text; }

function item(group) {
  const button = makeButton("", () => choose(group)), numbers = make("span", "numbers"), words = make("span", "words");
  button.className = "item";
  button.dataset.group = group.index;
  numbers.append(make("span", `badge ${group.kind}`, KIND_NAMES[group.kind]), `step ${group.step}, prompt ${group.group}`);
  const second = make("span", "numbers", `reward ${group.reward === null ? "unscorable" : show(group.reward)}, `
    + `credit ${show(group.credit)} in ${group.credited} of ${group.size}`);
  writeText(words, userTurn(group.prompt).slice(0, 120), true);
  words.replaceChildren(words.textContent.replaceAll("\u2423", " "));
  button.append(numbers, second, words);
  return button;
}

function markChosen() {
  for (const button of $("list").querySelectorAll("[aria-current]")) button.removeAttribute("aria-current");
  const button = chosen && $("list").querySelector(`[data-group="${chosen.index}"]`);
  if (button) { button.setAttribute("aria-current", "true"); button.scrollIntoView({ block: "nearest" }); }
}

async function choose(group) {
  chosen = group;
  const turn = ++state.turn;
  markChosen();
  hideTip();
  const tokens = await records.rolloutsOf(group);
  if (turn !== state.turn) return; // another prompt was chosen meanwhile
  const worth = (list, { row }) => numberAt(list, row) ?? -Infinity, order = (list) => (a, b) => worth(list, b) - worth(list, a) || 0;
  tokens.sort((a, b) => order(records.reward)(a, b) || order(records.advantage)(a, b)); // the best first
  const title = make("h2");
  title.append(make("span", `badge ${group.kind}`, KIND_NAMES[group.kind]), `step ${group.step}, prompt ${group.group}`);
  $("prompt-head").replaceChildren(title);
  $("prompt-text").replaceChildren();
  writeText($("prompt-text"), group.prompt);
  state.cards = tokens.map((one) => card(one, group));
  $("cards").replaceChildren(...state.cards.map((one) => one.element));
  $("cards").classList.toggle("short", tokens.every((one) => one.texts.length <= SHORT)); // rows of cards, not one
  $("cards").scrollLeft = 0;
  history.replaceState(null, "", `#${group.step}/${group.group}`);
  setScale();
  await fill(turn);
  showMarked();
}

async function fill(turn) {
  let left = ALL_AT_ONCE;
  for (const one of state.cards) {
    if (left <= 0) {
      await new Promise(requestAnimationFrame);
      if (turn !== state.turn) return;
      left = ALL_AT_ONCE;
    }
    left -= one.tokens.texts.length;
    const blocks = [make("div", "lines")];
    let size = 0, endsLine = false; // of the last block
    for (let i = 0; i < one.tokens.texts.length; i++) {
      const span = make("span", "t"), text = records.textAt(one.tokens, i);
      span.dataset.i = i;
      span.tabIndex = i ? -1 : 0;
      writeText(span, text);
      paint(span, numberAt(one.tokens.advantages, i), state.largest);
      if (size >= LONGEST || (size >= LONG && endsLine)) {
        blocks.push(make("div", "lines"));
        size = 0;
      }
      blocks.at(-1).append(span);
      one.spans.push(span);
      size += 1;
      endsLine = text.endsWith("\n");
    }
    one.text.classList.toggle("long", blocks.length > 1);
    one.text.replaceChildren(...blocks);
  }
}

function card(tokens, group) {
  const element = make("article", "card"), text = make("div", "text"), { row } = tokens, head = make("p", "facts");
  element.tabIndex = -1;
  const fact = (title, list) => [`${title} `, make("b", "", show(numberAt(list, row))), " \u00b7 "];
  const [total, verifier] = [numberAt(records.reward, row), numberAt(records.verifier_reward, row)];
  head.append("reward ", make("b", "", total === null ? "unscorable" : show(total)), " \u00b7 ");
  if (!Object.is(total, verifier)) head.append(...fact("verifier's", records.verifier_reward));
  head.append("length ", make("b", "", records.length[row]), " \u00b7 ", ...fact("NLL", records.nll));
  head.append(...fact("advantage", records.advantage), "GRPO's ", make("b", "", show(numberAt(records.grpo_advantage, row))));
  element.append(make("h3", "", `Rollout ${records.rollout[row]}`), head, text);
  const one = { element, text, tokens, group, records, spans: [] };
  text.addEventListener("pointerover", (event) => hover(event, one));
  text.addEventListener("focusin", (event) => hover(event, one));
  text.addEventListener("pointerleave", hideTip);
  text.addEventListener("focusout", hideTip);
  text.addEventListener("scroll", hideTip);
  element.addEventListener("focusin", () => { for (const other of state.cards) other.element.classList.toggle("current", other === one); });
  return one;
}

function hover(event, one) {
  const span = event.target.closest(".t");
  if (span) showTip($("tip"), span, one);
}

function hideTip() { $("tip").hidden = true; }

// What the darkest token stands for, and the legend that says so.
function setScale() {
  state.largest = Number(chosen.largest);
  $("legend-text").textContent = state.largest > 0
    ? `deepest: abs(advantage) ${show(state.largest)}, the largest of this prompt` : "no token of this prompt has an advantage";
  $("swatch-up").style.background = `linear-gradient(to right, ${colorsFor(0, true)[0]}, ${colorsFor(1, true)[0]})`;
  $("swatch-down").style.background = `linear-gradient(to right, ${colorsFor(0, false)[0]}, ${colorsFor(1, false)[0]})`;
}

function repaint() {
  if (!chosen) return;
  setScale();
  for (const one of state.cards) {
    for (const span of one.spans) paint(span, numberAt(one.tokens.advantages, span.dataset.i), state.largest);
  }
}

const VIEWS = ["prompts", "tokens"];
function view(name) {
  hideTip();
  for (const one of VIEWS) {
    $(one).hidden = one !== name;
    $(`view-${one}`).setAttribute("aria-pressed", one === name);
  }
  if (name === "tokens") table ??= new TokenTable(records.head, mark);
}

function toggleKind(kind) {
  if (!state.kinds.delete(kind)) state.kinds.add(kind);
  for (const button of $("kinds").children) button.setAttribute("aria-pressed", state.kinds.has(button.dataset.kind));
  filterPrompts();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open || !records.groups) return;
  const { key, target } = event, token = target.closest?.(".t"), inCard = target.closest?.(".card");
  if (target.matches("input, select")) {
    if (key === "Escape") target.blur();
    return;
  }
  const arrows = { ArrowLeft: -1, ArrowRight: 1 };
  if (token && key in arrows) stepToken(token, arrows[key]);
  else if (token && key === "Escape") inCard.focus();
  else if (inCard && !token && (key === "Enter" || key === "ArrowDown")) inCard.querySelector(".t")?.focus();
  else if (key in arrows && $("prompts").hidden === false) stepCard(arrows[key]);
  else if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
  else if (key === "l" || key === "h") stepCard(key === "l" ? 1 : -1);
  else if ("1234".includes(key)) toggleKind(Object.keys(KIND_NAMES)[key - 1]);
  else if (key === "/") { view("prompts"); $("search").focus(); }
  else if (key === "n") nextMarked();
  else if (key === "v") view(VIEWS[(VIEWS.findIndex((name) => !$(name).hidden) + 1) % VIEWS.length]);
  else if (key === "?") $("help").showModal();
  else return;
  event.preventDefault();
}

function drawHead() {
  const { head } = records, { steps } = head, count = (number) => number.toLocaleString("en");
  $("run").textContent = "";
  writeText($("run"), head.name);
  const range = steps.length > 1 ? `${steps.length} steps, ${steps[0]} to ${steps.at(-1)}` : steps.length ? `step ${steps[0]}` : "no step";
  const shown = head.rollouts === head.recorded ? `${count(head.rollouts)} rollouts` : `${count(head.rollouts)} of ${count(head.recorded)} recorded rollouts`;
  $("facts").textContent = [head.methods.join(" + ") || "method not recorded", range, `${shown} of ${count(records.groups.length)} prompts`]
    .join(" \u00b7 ");
  $("notes").hidden = !head.notes.length;
  for (const note of head.notes) writeText($("notes").appendChild(make("li")), note);
  for (const [i, kind] of Object.keys(KIND_NAMES).entries()) {
    const prompts = records.groups.filter((group) => group.kind === kind).length;
    if (kind === "unscorable" && !prompts) continue; // rare
    const button = makeButton(`${KIND_NAMES[kind]} ${count(prompts)}`, () => toggleKind(kind));
    button.dataset.kind = kind;
    button.title = `${kind} (${i + 1})`;
    button.setAttribute("aria-pressed", true);
    $("kinds").append(button);
  }
  $("step").append(new Option("all", ""), ...steps.map((one) => new Option(one, one)));
  for (const [keys, what] of KEYS) {
    const row = $("keys").insertRow(), cell = row.insertCell();
    for (const key of keys.split(" ")) cell.append(make("kbd", "", key), " ");
    row.insertCell().textContent = what;
  }
}

async function start() {
  await records.load();
  drawHead();
  let waiting;
  $("step").onchange = () => { state.step = $("step").value; filterPrompts(); };
  $("order").onchange = filterPrompts;
  $("search").oninput = () => { clearTimeout(waiting); waiting = setTimeout(() => search($("search").value), 200); };
  $("help-button").onclick = () => $("help").showModal();
  for (const name of VIEWS) $(`view-${name}`).onclick = () => view(name);
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  const [step, group] = location.hash.slice(1).split("/").map(Number);
  const named = records.groups.find((one) => one.step === step && one.group === group);
  if (step && !named) {
    $("notes").hidden = false;
    writeText($("notes").appendChild(make("li")), `Prompt ${group} of step ${step} is not on this page. To see that step: trl-miner inspect RUN --steps ${step}`);
  }
  const wanted = named ?? records.groups[0];
  if (wanted) await choose(wanted);
  else $("prompt-head").textContent = "No rollouts are recorded.";
  filterPrompts();
}

const ready = start().catch((error) => {
  $("failed").textContent = `The page cannot show its data: ${error.message}`;
  $("failed").hidden = false;
  throw error;
});

// For scripts: the numbers of one rollout as they were recorded, null where not known.
window.trlMinerInspect = {
  ready,
  async rollout(step, group, rollout) {
    const found = records.groups.find((one) => one.step === step && one.group === group);
    const tokens = (await records.rolloutsOf(found)).find(({ row }) => records.rollout[row] === rollout);
    const places = [...tokens.texts.keys()], numbers = (name) => places.map((i) => numberAt(tokens[name], i));
    return {
      tokens: places.map((i) => records.textAt(tokens, i)),
      old_logps: numbers("old_logps"), weights: numbers("weights"),
      advantages_before: numbers("advantages_before"), advantages: numbers("advantages"),
    };
  },
};
