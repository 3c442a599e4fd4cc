// Paints the tokens of a text behind its letters, and finds the one under the pointer.

import { stepOf } from "../../components/probability_scale.js";

/** @typedef {import("./cells.js").Cell} Cell */
/** @typedef {import("./text.js").Text} Text */

export class Painter {
  /** @type {Cell[]} */
  #cells = [];
  /** @type {HTMLElement[]} One for each cell. */
  #spans = [];
  #rest = document.createTextNode("");

  /**
   * Fill `behind` with the text; elements of unchanged cells stay.
   * @param {HTMLElement} behind
   * @param {Text} text
   */
  paint(behind, { content, cells }) {
    if (this.#rest.parentNode !== behind) this.#clear(behind);
    let same = 0;
    while (same < cells.length && cells[same] === this.#cells[same]) same++;
    this.#dropFrom(same);
    const added = document.createDocumentFragment();
    let end = same === 0 ? 0 : cells[same - 1].end;
    for (const cell of cells.slice(same)) {
      if (cell.start > end) added.append(content.slice(end, cell.start));
      const span = spanOf(cell, content.slice(cell.start, cell.end));
      this.#spans.push(span);
      added.append(span);
      end = cell.end;
    }
    this.#rest.before(added);
    this.#cells = cells;
    const rest = `${content.slice(end)}\u200b`; // a line break at the end begins a line in the field
    if (this.#rest.data !== rest) this.#rest.data = rest;
  }

  /** @param {HTMLElement} behind */
  #clear(behind) {
    this.#cells = [];
    this.#spans = [];
    behind.replaceChildren(this.#rest);
  }

  /** @param {number} place Remove the spans from this cell on, and the text between them. */
  #dropFrom(place) {
    const first = place === 0 ? this.#rest.parentNode?.firstChild : this.#spans[place - 1].nextSibling;
    for (let node = first; node && node !== this.#rest; ) {
      const next = /** @type {ChildNode | null} */ (node.nextSibling);
      node.remove();
      node = next;
    }
    this.#spans.length = place;
  }

  /**
   * Mark one cell, such as the one that is looked at.
   * @param {string} name
   * @param {number} place -1: none.
   */
  mark(name, place) {
    for (const [index, span] of this.#spans.entries()) {
      if (index === place || span.classList.contains(name)) span.classList.toggle(name, index === place);
    }
  }

  /**
   * Return the box of a cell in the window: of its line under the point, or without a point of its first line.
   * Null if it has no such line.
   * @param {number} place
   * @param {{x: number, y: number}} [point]
   */
  boxOf(place, point) {
    const boxes = [...(this.#spans[place]?.getClientRects() ?? [])];
    if (point === undefined) return boxes[0] ?? null;
    const { x, y } = point;
    return boxes.find((box) => x >= box.left && x <= box.right && y >= box.top && y <= box.bottom) ?? null;
  }
}

/** @param {Cell} cell @param {string} text */
function spanOf({ tokens }, text) {
  const span = document.createElement("span");
  const known = tokens.flatMap(({ logprob }) => (logprob === null ? [] : [logprob]));
  span.className = known.length > 0 ? `token is-step-${stepOf(Math.min(...known))}` : "token";
  if (text.includes("\n")) span.classList.add("is-break");
  span.textContent = text;
  return span;
}

/**
 * Return the offset in a field of the letter under a point; null if there is none.
 * @param {HTMLTextAreaElement} field
 * @param {{x: number, y: number}} point
 */
export function offsetAt(field, { x, y }) {
  const caret = document.caretPositionFromPoint?.(x, y);
  return caret?.offsetNode === field ? caret.offset : null;
}
