"use strict";
// The data of the page: trl_miner/viewing/inspect.py says how it is written.

const PIECES_KEPT = 8;

async function unpack(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

// The number at a place of a list; null: not known.
function numberAt(list, place) {
  const value = list?.[place] ?? null;
  return value === null ? null : Number(value);
}

class Records {
  async load() {
    this.head = await unpack("head");
    Object.assign(this, this.head.rows); // by name, with an entry for each rollout
    this.pieces = new Map();
    this.groups = this.head.groups.map((group, index) => ({ ...group, index }));
  }

  // One rollout: lists of its tokens.
  async tokensOf(row) {
    const index = this.head.pieces.findIndex(([first, end]) => first <= row && row < end);
    const piece = this.pieces.get(index) ?? unpack(`piece-${index}`);
    this.pieces.delete(index); // and in again, as the youngest
    this.pieces.set(index, piece);
    if (this.pieces.size > PIECES_KEPT) this.pieces.delete(this.pieces.keys().next().value);
    return { row, ...(await piece)[row - this.head.pieces[index][0]] };
  }

  textAt(tokens, place) { return this.head.texts[tokens.texts[place]]; }

  async textOf(row) {
    const tokens = await this.tokensOf(row);
    return tokens.texts.map((_, place) => this.textAt(tokens, place)).join("");
  }
}
