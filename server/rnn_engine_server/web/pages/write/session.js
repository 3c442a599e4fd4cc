// The text of the page, and the actions on it: go on, fork, score, undo. It is kept over reloads.

import { ApiError, post } from "../../api.js";
import { notifyError } from "../../components/notices.js";
import { keepDraft } from "../../drafts.js";
import { modelName } from "../../server.js";
import { createStore } from "../../store.js";
import { added, currentBranch, removed, START, undone, withText } from "./branches.js";
import { cellAt, tokenOf } from "./cells.js";
import { draw } from "./draw.js";
import { endsText } from "../../components/token_names.js";
import { constraintError, constraintFields, FIELDS, samplingFields, stateField } from "./settings.js";
import { begun, cutAt, edited, EMPTY, extended, forked, promptOf, seenBy } from "./text.js";

/** @typedef {import("./text.js").Text} Text */
/** @typedef {import("./cells.js").Token} Token */
/** @typedef {import("./cells.js").Alternative} Alternative */

/**
 * The facts of the last continuation.
 * @typedef {object} Facts
 * @property {number} tokens
 * @property {number | null} perSecond
 * @property {number | null} firstMs Until the first token.
 * @property {number | null} promptTokens
 * @property {number | null} reused How many of them the server had kept.
 * @property {number} read How many of them the model has read, while it reads.
 * @property {"running" | "limit" | "eos" | "word" | "none" | "stopped"} end
 */

const ALTERNATIVES = 8;
const ANSWER_FIELDS = [
  ...["stop", "completion_probabilities", "prompt_probabilities"],
  ...["tokens_evaluated", "tokens_cached", "timings", "stop_type", "prompt_progress"],
];

export const branches = createStore(START);
export const running = createStore(/** @type {AbortController | null} */ (null));
export const facts = createStore(/** @type {Facts | null} */ (null));

/** Settles when the kept texts have been read. */
export const restored = keepDraft("write", branches);

/** Return the text that is shown. */
export const currentText = () => shownText(currentBranch(branches.get()));

/** @param {import("./branches.js").Branch} branch Its text, without tokens of another model than the chosen one. */
function shownText({ text }) {
  const model = modelName();
  return model === "" ? text : seenBy(text, model);
}

/** @param {string} content What the person has written. */
export function write(content) {
  branches.set(withText(branches.get(), edited(currentText(), content)));
}

/** Stop the running call; the tokens that have come stay. */
export const stop = () => running.get()?.abort();

/** Go on with the text that is shown. */
export const goOn = () => continueAs("generated", currentText().content.length, currentText());

/** Write the last continuation anew, beside it. */
export function retry() {
  const branch = currentBranch(branches.get());
  const { parent, kind, from } = branch;
  const text = shownText(branch);
  if (parent === null || kind === "start") return goOn();
  const place = kind === "forked" ? cellAt(text.cells, from) : -1;
  const cut = cutAt(text, place === -1 ? from : text.cells[place].end);
  return continueAs(kind, from, cut, parent);
}

/**
 * Put another token in the place of one, and go on from there.
 * @param {number} place The cell.
 * @param {number} index The token in it.
 * @param {Alternative} chosen
 */
export async function fork(place, index, chosen) {
  stop();
  const text = currentText();
  const from = text.cells[place].start;
  if (endsText(chosen)) {
    branches.set(added(branches.get(), "forked", from, cutAt(text, from)));
    return;
  }
  const { top } = text.cells[place].tokens[index];
  await continueAs("forked", from, forked(text, place, index, { ...chosen, top }));
}

/** Show the text before the last continuation. */
export function undo() {
  stop();
  branches.set(undone(branches.get()));
}

/** @param {number} id The branch to be shown. */
export function show(id) {
  stop();
  branches.set({ ...branches.get(), current: id });
}

/** @param {number} id The branch to be dropped. */
export function drop(id) {
  stop();
  branches.set(removed(branches.get(), id));
}

/** Begin with an empty text; the others stay. */
export function clear() {
  stop();
  branches.set(added(branches.get(), "start", 0, EMPTY));
}

/** Find the probability of every token of the text that is shown. */
export async function score() {
  stop();
  const { id } = currentBranch(branches.get());
  const text = currentText();
  const model = modelName();
  await working(async (signal) => {
    const { prompt } = promptOf(begun(text, "", model));
    const body = { prompt, n_predict: 0, echo: true, n_probs: ALTERNATIVES, response_fields: ANSWER_FIELDS };
    const answer = await post("/completion", { ...body, ...modelField(), ...stateField() }, { signal });
    /** @type {Text} */
    const bare = { ...EMPTY, model, run: { pieces: [], first: 0, constraint: "", constrained: 0, ended: false } };
    const scored = extended(bare, answer.prompt_probabilities.map(tokenOf));
    branches.set(withText(branches.get(), scored, id));
  });
}

const modelField = () => (modelName() ? { model: modelName() } : {});

/**
 * Go on with `text` in a branch of its own.
 * @param {"generated" | "forked"} kind
 * @param {number} from
 * @param {Text} text
 * @param {number} parent
 */
async function continueAs(kind, from, text, parent = branches.get().current) {
  stop();
  const before = branches.get();
  const fields = constraintFields();
  const beginning = begun(text, Object.keys(fields).length > 0 ? JSON.stringify(fields) : "", modelName());
  branches.set(added({ ...before, current: parent }, kind, from, beginning));
  const id = branches.get().current;
  const { prompt, prefix } = promptOf(beginning);
  const body = { prompt, n_probs: ALTERNATIVES, response_fields: ANSWER_FIELDS, grammar_prefix_tokens: prefix };
  facts.set(null);
  await working(async (signal) => {
    await draw({ ...body, ...modelField(), ...samplingFields(), ...fields }, beginning, signal, (drawn, told) => {
      facts.set(told);
      branches.set(withText(branches.get(), drawn, id));
    });
  }, before);
}

/**
 * Run `work`, which the person may stop, and show its error.
 * @param {(signal: AbortSignal) => Promise<void>} work
 * @param {import("./branches.js").Branches} [before] What is shown again if no token has come.
 */
async function working(work, before) {
  const controller = new AbortController();
  running.set(controller);
  try {
    await work(controller.signal);
  } catch (error) {
    if (before && (facts.get()?.tokens ?? 0) === 0) branches.set(before);
    if (!noteConstraint(error)) notifyError(error);
  } finally {
    if (running.get() === controller) running.set(null);
  }
}

/** @param {unknown} error @returns {boolean} Whether it is about the constraint, in whose box it is shown. */
function noteConstraint(error) {
  if (!(error instanceof ApiError) || !Object.values(FIELDS).includes(error.param ?? "")) return false;
  constraintError.set({ message: error.message, line: error.line, column: error.column });
  return true;
}
