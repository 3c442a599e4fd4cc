// The kept settings for continuing texts: sampling, and the constraint that the text must follow.

import { settingStore } from "../../storage.js";
import { createStore } from "../../store.js";

/** @typedef {{sampling: import("../../components/sampling.js").Sampling, state: string}} Settings */
/** @typedef {"none" | "grammar" | "kbnf" | "regex" | "json"} ConstraintKind */
/** @typedef {{kind: ConstraintKind, texts: Record<string, string>}} Constraint */
/** @typedef {{message: string, line: number | null, column: number | null}} ConstraintError */

/** The field of a request for each kind of constraint. */
export const FIELDS = { grammar: "guided_grammar", kbnf: "bnf_schema", regex: "guided_regex", json: "json_schema" };

export const settings = settingStore("write.options", /** @type {Settings} */ ({ sampling: {}, state: "" }));

export const constraint = settingStore("write.constraint", /** @type {Constraint} */ ({ kind: "none", texts: {} }));

/** The error of the chosen constraint; null if none is known. */
export const constraintError = createStore(/** @type {ConstraintError | null} */ (null));

/**
 * Return the fields of a request for the constraint; none if there is no constraint.
 * @returns {Record<string, string>}
 */
export function constraintFields() {
  const { kind, texts } = constraint.get();
  if (kind === "none" || !texts[kind]?.trim()) return {};
  return { [FIELDS[kind]]: texts[kind] };
}

/** Return the fields of a request that say how tokens are drawn. */
export function samplingFields() {
  return { ...settings.get().sampling, ...stateField() };
}

/** Return the field for the state from which a text begins; none for the server's default. */
export function stateField() {
  const { state } = settings.get();
  return state ? { state } : {};
}
