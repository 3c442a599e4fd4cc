// A text whose tokens are known in part: the tokens, their places, and the prompt that goes on with the text.

import { addToken } from "./cells.js";

/** @typedef {import("./cells.js").Cell} Cell */
/** @typedef {import("./cells.js").Token} Token */
/** @typedef {string | number} Piece A part of a prompt: a text, or the id of a token. */

/**
 * The prompt that generation began from, so that it can go on or be forked with the same tokens.
 * @typedef {object} Run
 * @property {Piece[]} pieces What was sent before the run's first token.
 * @property {number} first The place of the run's first cell.
 * @property {string} constraint What the text must follow, as JSON; empty = nothing.
 * @property {number} constrained The number of the run's tokens before the constraint begins.
 * @property {boolean} ended True if the model ended the text.
 */

/**
 * @typedef {object} Text
 * @property {string} content
 * @property {Cell[]} cells In their order; there may be text before, between and after them.
 * @property {Run | null} run The last one, as long as the person has not written after it.
 * @property {string} model The model whose tokens the cells are; empty if there are no cells.
 */

/** @type {Text} */
export const EMPTY = { content: "", cells: [], run: null, model: "" };

/**
 * Return the text after an edit: tokens from the first change on are no longer known.
 * @param {Text} text
 * @param {string} content
 * @returns {Text}
 */
export function edited(text, content) {
  if (content === text.content) return text;
  const most = Math.min(content.length, text.content.length);
  let same = 0;
  while (same < most && content.charCodeAt(same) === text.content.charCodeAt(same)) same++;
  const cells = text.cells.filter(({ end, pending }) => end <= same && pending.length === 0);
  return { ...text, content, cells, run: null };
}

/**
 * Return the text with further tokens, which `run` has drawn.
 * @param {Text} text
 * @param {Token[]} tokens
 * @returns {Text}
 */
export function extended(text, tokens) {
  const cells = [...text.cells];
  const parts = [text.content];
  let end = text.content.length;
  for (const token of tokens) {
    const added = addToken(cells, token, end, text.run?.first ?? 0);
    parts.push(added);
    end += added.length;
  }
  return { ...text, content: parts.join(""), cells };
}

/**
 * Return the text for `model`, without its tokens if they are another model's.
 * @param {Text} text
 * @param {string} model
 * @returns {Text}
 */
export function seenBy(text, model) {
  return text.model === model || text.cells.length === 0 ? text : { ...EMPTY, content: text.content };
}

/**
 * Return the text, ready to go on under a constraint.
 * @param {Text} text
 * @param {string} constraint
 * @param {string} model
 * @returns {Text & {run: Run}}
 */
export function begun(text, constraint, model) {
  const { run } = text;
  const count = run === null ? 0 : tokensOf(text, run).length;
  if (run === null) {
    const first = text.cells.length;
    return { ...text, model, run: { pieces: [text.content], first, constraint, constrained: 0, ended: false } };
  }
  const goesOn = run.constraint === constraint && !run.ended;
  return { ...text, model, run: { ...run, constraint, constrained: goesOn ? run.constrained : count, ended: false } };
}

/**
 * Return the prompt that goes on with a begun text, and how many tokens at its end fall under its constraint.
 * @param {Text & {run: Run}} text
 */
export function promptOf(text) {
  const { run } = text;
  const ids = tokensOf(text, run).map(({ id }) => id);
  const prompt = [...run.pieces, ...ids].filter((piece) => piece !== "");
  const isText = prompt.every((piece) => typeof piece === "string");
  return { prompt: isText ? prompt.join("") : prompt, prefix: run.constraint ? ids.length - run.constrained : 0 };
}

/**
 * Return the text cut before one of its tokens, with `other` in its place.
 * @param {Text} text
 * @param {number} place The cell of the token.
 * @param {number} index The token in its cell.
 * @param {Token} other
 * @returns {Text}
 */
export function forked(text, place, index, other) {
  const cell = text.cells[place];
  const content = text.content.slice(0, cell.start);
  const run = text.run !== null && place >= text.run.first ? text.run : null;
  /** @type {Text} */
  const cut = {
    ...text,
    content,
    cells: text.cells.slice(0, place),
    run: {
      pieces: run?.pieces ?? [content],
      first: run?.first ?? place,
      constraint: run?.constraint ?? "",
      constrained: run?.constrained ?? 0,
      ended: false,
    },
  };
  const left = extended(cut, [...cell.tokens.slice(0, index), other]);
  const count = tokensOf(left, /** @type {Run} */ (left.run)).length;
  const { run: kept } = left;
  return kept !== null && kept.constrained >= count ? { ...left, run: { ...kept, constraint: "", constrained: 0 } } : left;
}

/**
 * Return the text as it was up to `offset`.
 * @param {Text} text
 * @param {number} offset
 * @returns {Text}
 */
export function cutAt(text, offset) {
  const cells = text.cells.filter(({ end }) => end <= offset);
  const run = text.run !== null && cells.length >= text.run.first ? { ...text.run, ended: false } : null;
  return { ...text, content: text.content.slice(0, offset), cells, run };
}

/** @param {Text} text @param {Run} run @returns {Token[]} */
const tokensOf = (text, run) => text.cells.slice(run.first).flatMap(({ tokens }) => tokens);

/**
 * Return the perplexity of the tokens whose probability is known, and how many they are.
 * @param {Cell[]} cells
 */
export function perplexityOf(cells) {
  let sum = 0;
  let count = 0;
  for (const { tokens } of cells) {
    for (const { logprob } of tokens) {
      if (logprob === null) continue;
      sum += logprob;
      count++;
    }
  }
  return { perplexity: count === 0 ? null : Math.exp(-sum / count), count };
}
