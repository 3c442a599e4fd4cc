// The questions of a table, and the errors of rows that can't be asked.

import { t } from "../../strings/index.js";

/** @typedef {{line: number, question: string, choices: string[], answer: number}} Item `answer`: a place in `choices`. */
/** @typedef {{line: number, reason: string}} WrongRow */

const QUESTION_NAMES = ["question", "prompt", "input", "问题"];
const ANSWER_NAMES = ["answer", "label", "target", "答案"];

/**
 * Return the questions of a table, and its wrong rows. The first row may be the columns' names.
 * @param {import("./csv.js").Row[]} rows
 * @returns {{items: Item[], wrong: WrongRow[]}}
 */
export function itemsOf(rows) {
  const names = (rows[0]?.cells ?? []).map((cell) => cell.trim().toLowerCase());
  const question = names.findIndex((name) => QUESTION_NAMES.includes(name));
  const answer = names.findIndex((name) => ANSWER_NAMES.includes(name));
  const named = question !== -1 && answer !== -1;
  /** @type {{items: Item[], wrong: WrongRow[]}} */
  const found = { items: [], wrong: [] };
  for (const { line, cells } of named ? rows.slice(1) : rows) {
    const values = cells.map((cell) => cell.trim());
    if (!named) while (values.length > 1 && values[values.length - 1] === "") values.pop();
    const asked = named ? question : 0;
    const right = named ? answer : values.length - 1;
    const choices = values.filter((value, place) => place !== asked && place !== right && value !== "");
    const item = itemOf(values[asked] ?? "", choices, values.length > right ? values[right] : "");
    if (typeof item === "string") found.wrong.push({ line, reason: item });
    else found.items.push({ line, ...item });
  }
  return found;
}

/**
 * @param {string} question
 * @param {string[]} choices
 * @param {string} answer
 * @returns {{question: string, choices: string[], answer: number} | string} A string says what is wrong.
 */
function itemOf(question, choices, answer) {
  if (question === "") return t("score.wrong.question");
  if (choices.length < 2) return t("score.wrong.choices", { count: choices.length });
  if (answer === "") return t("score.wrong.noAnswer");
  const place = placeOf(choices, answer);
  if (place === -1) return t("score.wrong.answer", { answer: answer.slice(0, 40), count: choices.length });
  return { question, choices, answer: place };
}

/**
 * Return the place of an answer in the choices, by its text, else its letter, else its number from 1; -1 if none.
 * @param {string[]} choices
 * @param {string} answer
 */
function placeOf(choices, answer) {
  const same = choices.indexOf(answer);
  if (same !== -1) return same;
  const place = /^[A-Za-z]$/.test(answer) ? answer.toUpperCase().charCodeAt(0) - 65 : /^\d+$/.test(answer) ? Number(answer) - 1 : -1;
  return place < choices.length ? place : -1;
}
