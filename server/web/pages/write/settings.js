// What the page keeps of how texts are continued: sampling, and what the text must follow.

import { settingStore } from "../../storage.js";
import { createStore } from "../../store.js";

export const SAMPLING = {
  temperature: 1,
  top_p: 0.5,
  top_k: 128,
  min_p: 0,
  presence_penalty: 0,
  frequency_penalty: 0,
  repeat_penalty: 1,
  n_predict: 100,
};

/** @typedef {typeof SAMPLING & {seed: string, state: string}} Settings */
/** @typedef {"none" | "grammar" | "kbnf" | "regex" | "json"} ConstraintKind */
/** @typedef {{kind: ConstraintKind, texts: Record<string, string>}} Constraint */
/** @typedef {{message: string, line: number | null, column: number | null}} ConstraintError */

/** The field of a request for each kind of constraint. */
export const FIELDS = { grammar: "guided_grammar", kbnf: "bnf_schema", regex: "guided_regex", json: "json_schema" };

export const settings = settingStore("write.settings", /** @type {Settings} */ ({ ...SAMPLING, seed: "", state: "" }));

export const constraint = settingStore("write.constraint", /** @type {Constraint} */ ({ kind: "none", texts: {} }));

/** What is wrong with the constraint that is chosen; null where nothing is known to be. */
export const constraintError = createStore(/** @type {ConstraintError | null} */ (null));

/**
 * Return the fields that say what the text must follow; none where it is free.
 * @returns {Record<string, string>}
 */
export function constraintFields() {
  const { kind, texts } = constraint.get();
  if (kind === "none" || !texts[kind]?.trim()) return {};
  return { [FIELDS[kind]]: texts[kind] };
}

/** Return the fields of a request that say how tokens are drawn. */
export function samplingFields() {
  const { seed, state, ...numbers } = settings.get();
  return { ...numbers, ...(seed.trim() ? { seed: Number(seed) } : {}), ...(state ? { state } : {}) };
}
