// Tokens as they stand in a text. A token may end inside a character; such tokens share a cell with those that end it.

/** @typedef {{id: number, bytes: number[], logprob: number}} Alternative */

/**
 * @typedef {object} Token
 * @property {number} id
 * @property {number[]} bytes
 * @property {number | null} logprob Null if nothing precedes the token.
 * @property {Alternative[]} top The likeliest tokens at its place.
 */

/**
 * One token, or several that make whole characters together only.
 * @typedef {object} Cell
 * @property {number} start In the text, in UTF-16 code units.
 * @property {number} end
 * @property {Token[]} tokens
 * @property {number[]} pending Bytes of a character that has not ended.
 */

const decoder = new TextDecoder();

/**
 * Return the token of an entry in the server's answer.
 * @param {{id: number, bytes: number[], logprob: number | null, top_logprobs: any[]}} entry
 * @returns {Token}
 */
export function tokenOf({ id, bytes, logprob, top_logprobs }) {
  const top = top_logprobs.map((other) => ({ id: other.id, bytes: other.bytes, logprob: other.logprob }));
  return { id, bytes, logprob, top };
}

/**
 * Add a token at `start`, and return the text that it adds. If the last cell has not ended, the token goes into it.
 * @param {Cell[]} cells The last one may be replaced.
 * @param {Token} token
 * @param {number} start
 * @param {number} first Cells before this place are not changed.
 */
export function addToken(cells, token, start, first) {
  const last = cells.length > first ? cells[cells.length - 1] : undefined;
  const open = last !== undefined && last.pending.length > 0 ? last : undefined;
  const bytes = [...(open?.pending ?? []), ...token.bytes];
  const whole = wholeCharacters(bytes);
  const text = decoder.decode(new Uint8Array(bytes.slice(0, whole)));
  const cell = {
    start: open?.start ?? start,
    end: start + text.length,
    tokens: [...(open?.tokens ?? []), token],
    pending: bytes.slice(whole),
  };
  if (open !== undefined) cells.pop();
  cells.push(cell);
  return text;
}

/**
 * Return the number of bytes before an incomplete character at the end.
 * @param {number[]} bytes
 */
function wholeCharacters(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if (byte < 0x80) break;
    if (byte >= 0xc0) {
      const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return length > back ? bytes.length - back : bytes.length;
    }
  }
  return bytes.length;
}

/**
 * Return the place of the cell that holds the character after `offset`, or the last one at the text's end; -1 if none.
 * @param {Cell[]} cells
 * @param {number} offset
 */
export function cellAt(cells, offset) {
  let low = 0;
  let high = cells.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (cells[middle].end <= offset) low = middle + 1;
    else high = middle;
  }
  if (low < cells.length) return cells[low].start <= offset ? low : -1;
  return cells.length > 0 && cells[cells.length - 1].end === offset ? cells.length - 1 : -1;
}
