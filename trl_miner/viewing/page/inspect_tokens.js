// The view "Tokens": which got the most credit.

const TOKEN_COLUMNS = [["token", "Token"], ["count", "Occurrences"], ["credit", "Credit"], ["share", "Share"], ["mean", "Mean"]];

class TokenTable {
  constructor(head, mark) {
    Object.assign(this, { head, mark, sort: "credit", down: true, limit: 100 });
    const kinds = Object.keys(KIND_NAMES).filter((kind) => head.tokens[kind].token.length);
    const select = document.getElementById("tokens-kind");
    for (const kind of kinds) select.append(new Option(KIND_NAMES[kind], kind));
    select.onchange = () => this.choose(select.value);
    document.getElementById("tokens-more").onclick = () => { this.limit += 400; this.draw(); };
    this.choose(kinds[0] ?? "PH");
  }

  choose(kind) {
    const { token, count, credit } = this.head.tokens[kind];
    const total = credit.reduce((sum, value) => sum + value, 0);
    this.rows = token.map((text, i) => ({
      token: text, count: count[i], credit: credit[i], mean: credit[i] / count[i],
      share: total > 0 ? credit[i] / total : 0,
    }));
    this.limit = 100;
    document.getElementById("tokens-text").textContent = this.rows.length
      ? `${KIND_NAMES[kind]} prompts, all recorded batches: ${token.length.toLocaleString("en")} token texts, credit ` +
        `${show(total)} in all. Credit: the sum of abs(advantage) after calibration. Press a token to mark it in the rollouts.`
      : "No tokens are recorded.";
    this.draw();
  }

  draw() {
    const way = this.down ? -1 : 1, by = this.sort;
    this.rows.sort((a, b) => way * (by === "token" ? (a.token < b.token ? -1 : 1) : a[by] - b[by]) || b.count - a.count);
    const titles = make("tr"), body = document.getElementById("tokens-body");
    for (const [name, title] of TOKEN_COLUMNS) {
      const cell = make("th");
      const arrow = name === by ? (this.down ? " \u2193" : " \u2191") : "";
      cell.append(makeButton(title + arrow, () => {
        this.down = name === by ? !this.down : name !== "token";
        this.sort = name;
        this.draw();
        document.querySelectorAll("#tokens-head button")[TOKEN_COLUMNS.findIndex(([known]) => known === name)].focus();
      }));
      if (name === by) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      titles.append(cell);
    }
    titles.append(make("th"));
    document.getElementById("tokens-head").replaceChildren(titles);
    const widest = Math.max(...this.rows.slice(0, 1e5).map((row) => row.share), 1e-300);
    body.replaceChildren(...this.rows.slice(0, this.limit).map((row) => this.line(row, widest)));
    document.getElementById("tokens-more").hidden = this.rows.length <= this.limit;
  }

  line(row, widest) {
    const line = make("tr"), button = makeButton("", () => this.mark(row.token));
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
