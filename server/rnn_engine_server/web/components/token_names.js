// The display of single tokens: with visible white space, and their probabilities in per cent.

import { formatNumber, t } from "../strings/index.js";

const END_OF_TEXT = 0;
const SEEN = { " ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍" };

/**
 * Return the name of a token: its text, its bytes if they are no whole characters, or its meaning.
 * @param {{id: number, bytes: number[]}} token
 */
export function nameOf({ id, bytes }) {
  if (endsText({ id, bytes })) return t("token.end");
  if (bytes.length === 0) return t("token.special", { id });
  const text = textOf(bytes);
  return text === null ? hexOf(bytes) : seenText(text);
}

/**
 * Return a text with visible characters for white space.
 * @param {string} text
 */
export const seenText = (text) => text.replace(/[ \n\t\r]/g, (space) => SEEN[/** @type {" "} */ (space)]);

/**
 * Return whether a token ends texts.
 * @param {{id: number, bytes: number[]}} token
 */
export const endsText = ({ id, bytes }) => id === END_OF_TEXT && (bytes.length === 0 || bytes[0] === 0);

/** @param {number[]} bytes */
function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

/** @param {number[]} bytes */
const hexOf = (bytes) => bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");

/**
 * Return the probability of a token in per cent.
 * @param {number | null} logprob
 */
export function percentOf(logprob) {
  if (logprob === null) return "–";
  const percent = 100 * Math.exp(logprob);
  if (percent >= 99.95 && percent < 100) return ">99.9 %";
  if (percent < 0.01) return "<0.01 %";
  return `${formatNumber(percent, percent < 1 ? 2 : 1)} %`;
}
