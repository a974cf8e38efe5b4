// Text and color. Whatever comes from a model or a file reaches the page as textContent.

const NEWLINE = "\u21b5", NO_TEXT = "\u25af";
const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/u;
const BLUE = { light: [0, 114, 178], dark: [86, 180, 233] }, ORANGE = { light: [230, 159, 0], dark: [230, 159, 0] };
const PAGE = { light: [255, 255, 255], dark: [21, 24, 27] };

// A character that does not show, by name; null: it shows.
function signFor(character) {
  const code = character.codePointAt(0);
  if (character === "\n") return NEWLINE;
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

function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function makeButton(text, pressed) {
  const button = make("button", "", text);
  button.type = "button";
  button.onclick = pressed;
  return button;
}

// 4 significant digits.
function show(number) {
  if (number === null || number === undefined) return "not known";
  number = Number(number);
  return Number.isFinite(number) ? String(Number(number.toPrecision(4))).replace("-", "\u2212") : String(number);
}

function exact(number) { return number === null ? "null" : String(number); }

function themeNow() { return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"; }

// Background and the text color that reads better on it; WCAG: at a luminance of 0.179 black and white are equal.
function colorsFor(darkness, isUp) {
  const theme = themeNow(), full = (isUp ? BLUE : ORANGE)[theme];
  const mixed = PAGE[theme].map((channel, i) => channel + (full[i] - channel) * darkness);
  const [r, g, b] = mixed.map((c) => (c <= 10.31 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const ink = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  return [`rgb(${mixed.map((channel) => channel.toFixed(2)).join(",")})`, ink];
}

// Depth of color is abs(advantage) in units of the largest; 1 where that is not finite.
function paint(span, advantage, largest) {
  const size = Math.abs(advantage), darkness = largest > 0 ? Math.min(1, size / largest) : size > 0 ? 1 : 0;
  span.classList.toggle("tool", advantage === null); // not the model's
  span.classList.toggle("odd", advantage !== null && !Number.isFinite(advantage));
  span.classList.toggle("down", advantage < 0);
  span.style.background = span.style.color = "";
  if (darkness > 0) [span.style.background, span.style.color] = colorsFor(darkness, advantage > 0);
}

// The numbers of one token beside it; data-* hold them to the last digit.
function showTip(tip, span, card) {
  const { records, tokens } = card, i = Number(span.dataset.i);
  const numbers = Object.fromEntries(["old_logps", "weights", "advantages_before", "advantages"]
    .map((name) => [name, numberAt(tokens[name], i)]));
  const text = records.textAt(tokens, i);
  const name = make("b");
  writeText(name, text.length > 300 ? text.slice(0, 300) + "\u2026" : text, true);
  const table = make("table");
  for (const [title, value] of [
    ["token", `${i + 1} of ${tokens.texts.length}`], ["old log-prob", show(numbers.old_logps)],
    ["probability", show(numbers.old_logps === null ? null : Math.exp(numbers.old_logps))],
    ["credit weight", numbers.weights === null ? "none, not ruled by MINER" : show(numbers.weights)], ["advantage before calibration", show(numbers.advantages_before)],
    ["advantage after", numbers.advantages === null ? "none, not the model's token" : show(numbers.advantages)],
  ]) {
    const row = table.insertRow();
    row.insertCell().textContent = title;
    row.insertCell().textContent = value;
  }
  tip.replaceChildren(name, table);
  Object.assign(tip.dataset, {
    token: text, logp: exact(numbers.old_logps), weight: exact(numbers.weights),
    before: exact(numbers.advantages_before), after: exact(numbers.advantages),
  });
  tip.hidden = false;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect(), { width, height } = tip.getBoundingClientRect();
  const below = box.bottom + 6 + height < innerHeight;
  tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 4))}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(4, box.top - height - 6)}px`;
}
