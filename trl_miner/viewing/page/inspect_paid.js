// The views "Which tokens are paid" and "Batches".

const PAID_COLUMNS = [["token", "Token"], ["count", "Occurrences"], ["credit", "Credit"], ["share", "Share"], ["mean", "Mean"]];

class PaidTable {
  constructor(head, texts, mark) {
    Object.assign(this, { head, texts, mark, sort: "credit", down: true, limit: 100 });
    const kinds = Object.keys(KIND_NAMES).filter((kind) => head.paid[kind].text.length);
    const select = document.getElementById("paid-kind");
    for (const kind of kinds) select.append(new Option(KIND_NAMES[kind], kind));
    select.onchange = () => this.choose(select.value);
    document.getElementById("paid-more").onclick = () => { this.limit += 400; this.draw(); };
    this.choose(kinds[0] ?? "PH");
  }

  choose(kind) {
    const { text, count, credit } = this.head.paid[kind];
    const total = credit.reduce((sum, value) => sum + value, 0);
    this.rows = text.map((index, i) => ({
      index, token: this.texts[index], count: count[i], credit: credit[i], mean: credit[i] / count[i],
      share: total > 0 ? credit[i] / total : 0,
    }));
    this.limit = 100;
    document.getElementById("paid-text").textContent = this.rows.length
      ? `${KIND_NAMES[kind]} prompts, all recorded batches: ${text.length.toLocaleString("en")} token texts, credit ` +
        `${show(total)} in all. Credit: the sum of abs(advantage) after calibration. Press a token to mark it in the rollouts.`
      : "No tokens are recorded.";
    this.draw();
  }

  draw() {
    const way = this.down ? -1 : 1, by = this.sort;
    this.rows.sort((a, b) => way * (by === "token" ? (a.token < b.token ? -1 : 1) : a[by] - b[by]) || b.count - a.count);
    const titles = make("tr"), body = document.getElementById("paid-body");
    for (const [name, title] of PAID_COLUMNS) {
      const cell = make("th");
      const arrow = name === by ? (this.down ? " \u2193" : " \u2191") : "";
      cell.append(makeButton(title + arrow, () => {
        this.down = name === by ? !this.down : name !== "token";
        this.sort = name;
        this.draw();
        document.querySelectorAll("#paid-head button")[PAID_COLUMNS.findIndex(([known]) => known === name)].focus();
      }));
      if (name === by) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      titles.append(cell);
    }
    titles.append(make("th"));
    document.getElementById("paid-head").replaceChildren(titles);
    const widest = Math.max(...this.rows.slice(0, 1e5).map((row) => row.share), 1e-300);
    body.replaceChildren(...this.rows.slice(0, this.limit).map((row) => this.line(row, widest)));
    document.getElementById("paid-more").hidden = this.rows.length <= this.limit;
  }

  line(row, widest) {
    const line = make("tr"), button = makeButton("", () => this.mark(row.index));
    writeText(button, row.token.length > 200 ? row.token.slice(0, 200) + "\u2026" : row.token, true);
    line.insertCell().append(button);
    const numbers = [row.count.toLocaleString("en"), show(row.credit), `${(100 * row.share).toFixed(2)} %`, show(row.mean)];
    for (const text of numbers) line.insertCell().textContent = text;
    const bar = make("span", "bar"), cell = line.insertCell();
    cell.className = "bars";
    bar.style.width = `${(100 * row.share) / widest}%`;
    if (row.share > 0) cell.append(bar);
    return line;
  }
}

// "credit shown: 0.0153 of tau_pos * scale = 0.0153"
function batchSum(batch) {
  if (batch.expected === null) return `Step ${batch.step}: credit recorded ${show(batch.credit)}.`;
  const of = `Step ${batch.step}: credit recorded ${show(batch.credit)} of tau_pos * scale = ${show(batch.expected)}`;
  if (batch.complete) return `${of}; the batch is recorded whole.`;
  const share = batch.expected > 0 ? `, ${((100 * batch.credit) / batch.expected).toFixed(1)} %` : "";
  const size = batch.meta.rollouts_in_batch;
  return `${of}${share}: ${batch.rollouts} of ${size ?? "an unknown number of"} rollouts are recorded.`;
}

function drawBatches(head) {
  const table = document.getElementById("batch-table"), names = [];
  for (const batch of head.batches) names.push(...Object.keys(batch.meta).filter((name) => !names.includes(name)));
  const own = ["step", "rollouts", "credit", "expected"], titles = ["step", "rollouts recorded", "credit recorded", "tau_pos * scale"];
  const columns = names.filter((name) => name !== "step" && name !== "rollouts_logged");
  const row = table.createTHead().insertRow();
  for (const title of [...titles, ...columns]) row.append(make("th", "", title === "credit" ? "credit weights" : title));
  const body = table.createTBody();
  for (const batch of head.batches) {
    const line = body.insertRow();
    for (const name of own) line.insertCell().textContent = name === "rollouts" ? batch[name] : show(batch[name]);
    for (const name of columns) {
      const value = batch.meta[name];
      const isText = typeof value === "string" && Number.isNaN(Number(value)) && value !== "NaN";
      line.insertCell().textContent = isText || typeof value === "boolean" ? value : show(value);
    }
  }
  document.getElementById("files").append(...head.files.map((name) => make("li", "", name)));
}
