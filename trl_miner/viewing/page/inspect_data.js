"use strict";
// The data of the page: trl_miner/viewing/inspect.py says how it is written.

const PROMPTS_KEPT = 8;

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
    this.prompts = new Map();
    this.groups = this.head.groups.map((group, index) => ({ ...group, index }));
  }

  // The rollouts of a prompt: of each its row, and lists of its tokens.
  async rolloutsOf({ index, first }) {
    const prompt = this.prompts.get(index) ?? unpack(`prompt-${index}`);
    this.prompts.delete(index); // and in again, as the youngest
    this.prompts.set(index, prompt);
    if (this.prompts.size > PROMPTS_KEPT) this.prompts.delete(this.prompts.keys().next().value);
    return (await prompt).map((tokens, i) => ({ row: first + i, ...tokens }));
  }

  textAt(tokens, place) { return this.head.texts[tokens.texts[place]]; }
}
