"use strict";
// The data of the page: trl_miner/viewing/packing.py says how they are packed.

const NULL_BITS = 0x7fc00001;
const PIECES_KEPT = 8;

async function unpack(id) {
  const text = document.getElementById(id).textContent.trim();
  const bytes = Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : oldFromBase64(text);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function oldFromBase64(text) {
  const characters = atob(text), bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

async function unpackJson(id) {
  return JSON.parse(new TextDecoder().decode(await unpack(id)));
}

// A reader of arrays that lie one after another, each byte plane by byte plane.
function planes(bytes) {
  let at = 0;
  return {
    words(count) {
      const out = new Uint8Array(4 * count);
      for (let plane = 0; plane < 4; plane++) {
        for (let i = 0; i < count; i++) out[4 * i + plane] = bytes[at + plane * count + i];
      }
      at += 4 * count;
      return new Uint32Array(out.buffer);
    },
    doubles(count) {
      const out = new Float64Array(bytes.slice(at, at + 8 * count).buffer);
      at += 8 * count;
      return out;
    },
  };
}

// The number at a place; null: not known. Bits are compared, for NaN is not null.
function numberAt(bits, place) {
  return bits[place] === NULL_BITS ? null : new Float32Array(bits.buffer, bits.byteOffset + 4 * place, 1)[0];
}

class Records {
  async load() {
    [this.head, this.words] = await Promise.all([unpackJson("head"), unpackJson("words")]);
    const read = planes(await unpack("rows")), count = this.head.rollouts;
    for (const name of ["reward", "verifier_reward", "grpo_advantage", "advantage", "nll"]) this[name] = read.words(count);
    for (const name of ["rollout", "length", "tokens"]) this[name] = new Int32Array(read.words(count).buffer);
    this.pieces = new Map();
    this.groups = this.head.groups.map((group, index) => ({ ...group, index }));
    return this;
  }

  // Unpacked arrays of the piece that holds this row.
  async piece(row) {
    const index = this.head.pieces.findIndex(([first, end]) => first <= row && row < end);
    let piece = this.pieces.get(index);
    if (!piece) piece = this.decode(index);
    this.pieces.delete(index); // and in again, as the youngest
    this.pieces.set(index, piece);
    if (this.pieces.size > PIECES_KEPT) this.pieces.delete(this.pieces.keys().next().value);
    return piece;
  }

  async decode(index) {
    const [first, end] = this.head.pieces[index];
    const starts = [0];
    for (let row = first; row < end; row++) starts.push(starts.at(-1) + this.tokens[row]);
    const read = planes(await unpack(`piece-${index}`)), count = starts.at(-1);
    const piece = { first, starts, words: read.words(count), old_logps: read.words(count), weights: read.words(count) };
    const after = read.words(count), before = read.words(count), rows = end - first;
    piece.advantages = products(piece.weights, read.doubles(rows), after, starts);
    piece.advantages_before = products(piece.weights, read.doubles(rows), before, starts);
    return piece;
  }

  // One rollout: typed arrays of its tokens. Numbers are given as bits, see numberAt.
  async tokensOf(row) {
    const piece = await this.piece(row), [start, end] = piece.starts.slice(row - piece.first, row - piece.first + 2);
    const cut = (name) => piece[name].subarray(start, end);
    return {
      row, words: cut("words"), old_logps: cut("old_logps"), weights: cut("weights"),
      advantages_before: cut("advantages_before"), advantages: cut("advantages"),
    };
  }

  textAt(tokens, place) { return this.words.texts[this.words.text_of[tokens.words[place]]]; }

  async textOf(row) {
    const tokens = await this.tokensOf(row), parts = [];
    for (let i = 0; i < tokens.words.length; i++) parts.push(this.textAt(tokens, i));
    return parts.join("");
  }
}

// Bits of float32(weight * factor), plus the difference that is stored; in place.
function products(weightBits, factors, bits, starts) {
  const weights = new Float32Array(weightBits.buffer), product = new Float32Array(1);
  const productBits = new Int32Array(product.buffer);
  for (let row = 0; row < factors.length; row++) {
    for (let i = starts[row]; i < starts[row + 1]; i++) {
      product[0] = (Number.isFinite(weights[i]) ? weights[i] : 1) * factors[row];
      bits[i] = productBits[0] + bits[i];
    }
  }
  return bits;
}
