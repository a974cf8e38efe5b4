"use strict";
// trl_miner/viewing/inspect.py says how the data is written. Whatever comes from a model or a file reaches the page as
// textContent.

const NO_TEXT = "\u25af", HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;
const BLUE = { light: [0, 114, 178], dark: [86, 180, 233] }, ORANGE = { light: [230, 159, 0], dark: [230, 159, 0] };
const PAGE = { light: [255, 255, 255], dark: [21, 24, 27] };
const SHORT = 120; // tokens of a rollout
// A browser lays out long lines slowly: so many tokens are a block of their own, from a newline on or, without one, anyhow.
const LONG = 200, LONGEST = 1500;
const $ = (id) => document.getElementById(id);
const darkScheme = matchMedia("(prefers-color-scheme: dark)");
const state = { kinds: new Set(Object.keys(KIND_NAMES)), step: "", query: "", found: null, chosen: null, spans: [], largest: 0 };
let head = null, prompts = [];

// The data

async function unpack(id) {
  const text = $(id).textContent.trim();
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}

// The rollouts of a prompt, the best first.
function rolloutsOf(prompt) {
  const best = (name) => (a, b) => (number(b[name]) ?? -Infinity) - (number(a[name]) ?? -Infinity) || 0;
  const order = (a, b) => best("reward")(a, b) || best("advantage")(a, b);
  return prompt.unpacked ??= unpack(`prompt-${prompts.indexOf(prompt)}`).then((rollouts) => rollouts.sort(order));
}

function number(value) { return value === null || value === undefined ? null : Number(value); }

function textsOf(rollout) { return rollout.texts.map((text) => head.texts[text]); }

// Text and color

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...content);
  return element;
}

// A character that does not show, by name; null: it shows.
function signFor(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return "\u21b5";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return HIDDEN.test(character) ? `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9` : null;
}

// Text with its signs set apart; newlines break, unless it is a label, where spaces show too.
function writeText(element, text, label = false) {
  if (text === "") return void element.append(make("span", "sign", NO_TEXT));
  if (!label && !HIDDEN.test(text)) return void element.append(text);
  let plain = "";
  for (const character of text) {
    const sign = label && character === " " ? "\u2423" : signFor(character);
    if (sign === null) { plain += character; continue; }
    if (plain) element.append(plain);
    element.append(make("span", "sign", sign));
    plain = character === "\n" && !label ? "\n" : "";
  }
  if (plain) element.append(plain);
}

// 4 significant digits.
function show(value) {
  if (value === null) return "not known";
  return Number.isFinite(value) ? String(Number(value.toPrecision(4))).replace("-", "\u2212") : String(value);
}

// Background and the text color that reads better on it; WCAG: at a luminance of 0.179 black and white are equal.
function colorsFor(darkness, isUp) {
  const theme = darkScheme.matches ? "dark" : "light", full = (isUp ? BLUE : ORANGE)[theme];
  const mixed = PAGE[theme].map((channel, i) => channel + (full[i] - channel) * darkness);
  const [r, g, b] = mixed.map((c) => (c <= 10.31 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const ink = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  return [`rgb(${mixed.map((channel) => channel.toFixed(2)).join(",")})`, ink];
}

// Depth of color is abs(advantage) in units of the largest of the prompt; 1 where that is not finite.
function paint({ span, rollout, place }) {
  const advantage = number(rollout.advantages?.[place]), size = Math.abs(advantage);
  const darkness = state.largest > 0 ? Math.min(1, size / state.largest) : size > 0 ? 1 : 0;
  span.classList.toggle("tool", advantage === null); // not the model's
  span.classList.toggle("odd", advantage !== null && !Number.isFinite(advantage));
  span.classList.toggle("down", advantage < 0);
  span.style.background = span.style.color = "";
  if (darkness > 0) [span.style.background, span.style.color] = colorsFor(darkness, advantage > 0);
}

function paintAll() {
  state.spans.forEach(paint);
  for (const [id, isUp] of [["swatch-up", true], ["swatch-down", false]]) {
    $(id).style.background = `linear-gradient(to right, ${colorsFor(0, isUp)[0]}, ${colorsFor(1, isUp)[0]})`;
  }
}

// The list of prompts

function listPrompts() {
  const listed = prompts.filter((prompt) => state.kinds.has(prompt.kind)
    && (state.step === "" || prompt.step === Number(state.step)) && (state.found === null || state.found.has(prompt)));
  $("list").replaceChildren(...listed.map(item));
  $("count").textContent = `${listed.length.toLocaleString("en")} of ${prompts.length.toLocaleString("en")} prompts`;
  if (listed.length && !listed.includes(state.chosen)) choose(listed[0]);
  else markChosen();
}

async function search(query) {
  const found = new Set(), has = (text) => text.toLowerCase().includes(query.toLowerCase());
  state.query = query;
  for (const [index, prompt] of prompts.entries()) {
    if (query === "" || has(prompt.prompt)) { found.add(prompt); continue; }
    if (index % 8 === 0) $("count").textContent = `searching prompt ${index} of ${prompts.length}`;
    if ((await rolloutsOf(prompt)).some((rollout) => has(textsOf(rollout).join("")))) found.add(prompt);
    if (state.query !== query) return; // another search began meanwhile
  }
  state.found = query === "" ? null : found;
  listPrompts();
}

// The user's last turn of a chat, as common templates mark it; a prompt without one as it is.
function userTurn(prompt) {
  const turns = [...prompt.matchAll(/(?:^|\n|>)user(?:<\|end_header_id\|>|:)?\s+([^]*?)(?=<\||<end_of_turn>|\nassistant\b|$)/gi)];
  return (turns.at(-1)?.[1] || prompt).trim();
}

function titleOf(prompt) { return [make("span", `badge ${prompt.kind}`, KIND_NAMES[prompt.kind]), `step ${prompt.step}, prompt ${prompt.group}`]; }

function item(prompt) {
  const words = make("span", "words"), reward = prompt.reward === null ? "unscorable" : show(prompt.reward);
  const button = make("button", "item", make("span", "numbers", ...titleOf(prompt)), make("span", "numbers", `reward ${reward}`), words);
  button.onclick = () => choose(prompt);
  button.dataset.prompt = prompts.indexOf(prompt);
  writeText(words, userTurn(prompt.prompt).slice(0, 120), true);
  words.replaceChildren(words.textContent.replaceAll("\u2423", " "));
  return button;
}

function markChosen() {
  $("list").querySelector("[aria-current]")?.removeAttribute("aria-current");
  const button = state.chosen && $("list").querySelector(`[data-prompt="${prompts.indexOf(state.chosen)}"]`);
  button?.setAttribute("aria-current", "true");
  button?.scrollIntoView({ block: "nearest" });
}

// A prompt and its rollouts

async function choose(prompt) {
  state.chosen = prompt;
  markChosen();
  const rollouts = await rolloutsOf(prompt);
  if (state.chosen !== prompt) return; // another was chosen meanwhile
  state.spans = [];
  state.largest = 0;
  for (const rollout of rollouts) {
    for (const value of rollout.advantages ?? []) {
      const size = Math.abs(number(value));
      if (size > state.largest && size < Infinity) state.largest = size;
    }
  }
  $("tip").hidden = true;
  $("prompt-head").replaceChildren(make("h2", "", ...titleOf(prompt)));
  $("prompt-text").replaceChildren();
  writeText($("prompt-text"), prompt.prompt);
  $("legend-text").textContent = state.largest > 0
    ? `deepest: abs(advantage) ${show(state.largest)}, the largest of this prompt` : "no token of this prompt has an advantage";
  $("cards").replaceChildren(...rollouts.map(card));
  $("cards").classList.toggle("short", rollouts.every((one) => one.texts.length <= SHORT)); // rows of cards, not one
  $("cards").scrollLeft = 0;
  paintAll();
}

function card(rollout) {
  const facts = make("p", "facts"), [total, verifier] = [number(rollout.reward), number(rollout.verifier_reward)];
  const values = [["reward", total === null ? "unscorable" : show(total)]];
  if (!Object.is(total, verifier)) values.push(["verifier's", show(verifier)]);
  values.push(["length", rollout.length]);
  for (const [name, value] of [["NLL", rollout.nll], ["advantage", rollout.advantage], ["GRPO's", rollout.grpo_advantage]]) {
    if (number(value) !== null) values.push([name, show(number(value))]); // rollouts of plain GRPO have the advantage alone
  }
  values.forEach(([name, value], i) => facts.append(i ? " \u00b7 " : "", `${name} `, make("b", "", value)));
  return make("article", "card", make("h3", "", `Completion ${rollout.rollout}`), facts, tokensOf(rollout));
}

function tokensOf(rollout) {
  const blocks = [make("div", "lines")], spans = [];
  let size = 0, endsLine = false; // of the last block
  for (const [place, text] of textsOf(rollout).entries()) {
    const span = make("span", "t");
    span.tabIndex = place ? -1 : 0;
    writeText(span, text);
    if (size >= LONGEST || (size >= LONG && endsLine)) {
      blocks.push(make("div", "lines"));
      size = 0;
    }
    blocks.at(-1).append(span);
    spans.push(span);
    state.spans.push({ span, rollout, place });
    size += 1;
    endsLine = text.endsWith("\n");
  }
  const text = make("div", `text ${blocks.length > 1 ? "long" : ""}`, ...blocks), hide = () => { $("tip").hidden = true; };
  const tell = ({ target }) => { if (target.matches(".t, .t *")) showTip(target.closest(".t"), rollout, spans.indexOf(target.closest(".t"))); };
  for (const event of ["pointerover", "focusin"]) text.addEventListener(event, tell);
  for (const event of ["pointerleave", "focusout", "scroll"]) text.addEventListener(event, hide);
  text.addEventListener("keydown", ({ key }) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (by) spans[spans.indexOf(document.activeElement) + by]?.focus();
  });
  return text;
}

// The numbers of one token beside it.
function showTip(span, rollout, place) {
  const tip = $("tip"), table = make("table"), name = make("b"), text = head.texts[rollout.texts[place]];
  const [logp, weight, before, after] = ["old_logps", "weights", "advantages_before", "advantages"].map((list) => number(rollout[list]?.[place]));
  writeText(name, text.length > 300 ? text.slice(0, 300) + "\u2026" : text, true);
  for (const [title, value] of [
    ["token", `${place + 1} of ${rollout.texts.length}`], ["old log-prob", show(logp)],
    ["probability", show(logp === null ? null : Math.exp(logp))],
    ["credit weight", weight === null ? "none, not ruled by MINER" : show(weight)], ["advantage before calibration", show(before)],
    ["advantage after", after === null ? "none, not the model's token" : show(after)],
  ]) table.append(make("tr", "", make("td", "", title), make("td", "", value)));
  tip.replaceChildren(name, table);
  tip.hidden = false;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect(), { width, height } = tip.getBoundingClientRect();
  const below = box.bottom + 6 + height < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 4))}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(4, box.top - height - 6)}px`;
}

// The start

function drawHead() {
  const { steps } = head, count = (size) => size.toLocaleString("en");
  writeText($("run"), head.name);
  const range = steps.length > 1 ? `${steps.length} steps, ${steps[0]} to ${steps.at(-1)}` : steps.length ? `step ${steps[0]}` : "no step";
  const rollouts = prompts.reduce((sum, prompt) => sum + prompt.rollouts, 0);
  $("facts").textContent = [head.methods.join(" + ") || "method not recorded", range, `${count(rollouts)} rollouts of ${count(prompts.length)} prompts`]
    .join(" \u00b7 ");
  $("notes").hidden = !head.notes.length;
  for (const note of head.notes) writeText($("notes").appendChild(make("li")), note);
  for (const kind of Object.keys(KIND_NAMES)) {
    const size = prompts.filter((prompt) => prompt.kind === kind).length;
    if (kind === "unscorable" && !size) continue; // rare
    const button = make("button", "", `${KIND_NAMES[kind]} ${count(size)}`);
    button.setAttribute("aria-pressed", true);
    button.onclick = () => {
      if (!state.kinds.delete(kind)) state.kinds.add(kind);
      button.setAttribute("aria-pressed", state.kinds.has(kind));
      listPrompts();
    };
    $("kinds").append(button);
  }
  $("step").append(new Option("all", ""), ...steps.map((step) => new Option(step, step)));
}

async function start() {
  head = await unpack("head");
  prompts = head.prompts;
  drawHead();
  let waiting;
  $("step").onchange = () => { state.step = $("step").value; listPrompts(); };
  $("search").oninput = () => { clearTimeout(waiting); waiting = setTimeout(() => search($("search").value), 200); };
  darkScheme.addEventListener("change", paintAll);
  if (prompts.length) await choose(prompts[0]);
  else $("prompt-head").textContent = "No rollouts are recorded.";
  listPrompts();
}

const ready = start().catch((error) => {
  $("failed").textContent = `The page cannot show its data: ${error.message}`;
  $("failed").hidden = false;
  throw error;
});
