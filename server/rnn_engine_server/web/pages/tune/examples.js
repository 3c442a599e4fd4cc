// Reading examples as JSONL: what each asks and answers, and what is odd in it. The server checks them once more.

import { t } from "../../strings/index.js";

/** @typedef {{line: number, question: string, answer: string, odd: string, isWrong: boolean}} Example `odd`: in words. */

/** The fewest examples of a tuning. */
export const FEWEST = 10;

/**
 * Return the examples of a text, one for each line that is not empty.
 * @param {string} text
 * @returns {Example[]}
 */
export function readExamples(text) {
  /** @type {Map<string, number>} */
  const seen = new Map();
  return text.split(/\r?\n/).flatMap((line, place) => {
    if (line.trim() === "") return [];
    const example = readExample(line, place + 1);
    const earlier = seen.get(line.trim());
    if (earlier !== undefined && example.odd === "") return [{ ...example, odd: t("tune.odd.twice", { line: earlier }) }];
    if (earlier === undefined) seen.set(line.trim(), place + 1);
    return [example];
  });
}

/** Return the line of an example with one turn or more. @param {[question: string, answer: string][]} turns */
export const exampleLine = (...turns) =>
  JSON.stringify({
    messages: turns.flatMap(([question, answer]) => [
      { role: "user", content: question },
      { role: "assistant", content: answer },
    ]),
  });

/** @param {string} text @param {number} line @returns {Example} */
function readExample(text, line) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return wrong(line, text, t("tune.odd.json"));
  }
  const read = value !== null && typeof value === "object" && FORMS.find(([key]) => key in value);
  if (!read) return wrong(line, text, t("tune.odd.form"));
  const found = read[1](value);
  if (found === null) return wrong(line, text, t("tune.odd.values"));
  const [question, answer] = found;
  if (answer === undefined) return wrong(line, text, t("tune.odd.noAnswer"));
  return { line, question, answer, odd: answer.trim() === "" ? t("tune.odd.empty") : "", isWrong: false };
}

/** @param {number} line @param {string} text @param {string} odd @returns {Example} */
const wrong = (line, text, odd) => ({ line, question: text.slice(0, 200), answer: "", odd, isWrong: true });

/** @typedef {[string, string | undefined] | null} Read Question and last answer; null if the values are of other types. */

/** The forms of examples, each by a key that it has. @type {[string, (value: any) => Read][]} */
const FORMS = [
  ["messages", ({ messages }) => ofMessages(messages, "role", "content", ["assistant"])],
  ["conversations", ({ conversations }) => ofMessages(conversations, "from", "value", ["gpt", "assistant"])],
  ["instruction", ({ instruction, input = "", output }) => ofTexts([instruction, input].filter(Boolean).join("\n"), output)],
  ["prompt", ({ prompt, completion }) => ofTexts(textOf(prompt), textOf(completion))],
  ["text", ({ text }) => ofTexts("", text)],
];

/** @param {unknown} question @param {unknown} answer @returns {Read} */
const ofTexts = (question, answer) =>
  typeof question === "string" && (answer === undefined || typeof answer === "string") ? [question, answer] : null;

/** @param {any} messages @param {string} role @param {string} content @param {string[]} answering @returns {Read} */
function ofMessages(messages, role, content, answering) {
  if (!Array.isArray(messages)) return null;
  const place = messages.findLastIndex((message) => answering.includes(message?.[role]));
  const asked = messages.slice(0, Math.max(place, 0)).findLast((message) => message?.[role] !== "system");
  const answer = messages[place];
  const calls = answer?.tool_calls;
  return [textOf(asked?.[content]) ?? "", calls ? JSON.stringify(calls) : textOf(answer?.[content])];
}

/** @param {any} value A text, or messages or parts with texts. @returns {string | undefined} */
function textOf(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map((part) => part?.text ?? part?.content ?? "").join("\n");
  return undefined;
}
