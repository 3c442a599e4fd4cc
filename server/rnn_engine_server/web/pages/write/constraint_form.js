// The constraint of the text: a grammar, a regular expression or a JSON schema, with any error marked in place.

import { ApiError, post } from "../../api.js";
import { Select } from "../../components/fields.js";
import { Overlay } from "../../components/overlay.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useEffect } from "../../vendor/preact.js";
import { EXAMPLES } from "./examples.js";
import { constraint, constraintError, constraintFields } from "./settings.js";

/** @typedef {import("./settings.js").ConstraintKind} ConstraintKind */

const CHECK_MS = 400;
const KINDS = /** @type {const} */ (["none", "grammar", "kbnf", "regex", "json"]);

export function ConstraintForm() {
  const { kind, texts } = useStore(constraint);
  const error = useStore(constraintError);
  const text = texts[kind] ?? "";
  useCheck(kind, text);
  /** @param {string} written */
  const write = (written) => constraint.set({ kind, texts: { ...texts, [kind]: written } });
  return html`
    <div class="stack">
      <${Select}
        label=${t("write.constraint.kind")}
        value=${kind}
        options=${KINDS.map((one) => ({ value: one, label: t(`write.constraint.${one}`) }))}
        onChange=${(/** @type {ConstraintKind} */ chosen) => constraint.set({ kind: chosen, texts })}
      />
      ${
        kind !== "none" &&
        html`
          <div class=${error ? "code-field is-wrong" : "code-field"}>
            <div class="code-lines" aria-hidden="true">${linesOf(text, error?.line ?? null)}</div>
            <${Overlay}
              value=${text}
              paint=${(/** @type {HTMLElement} */ behind) => paintError(behind, text, error)}
              onInput=${write}
              wrap="off"
              aria-label=${t(`write.constraint.${kind}`)}
              aria-invalid=${error ? "true" : undefined}
              aria-describedby=${error ? "constraint-error" : undefined}
            />
          </div>
          ${
            error
              ? html`
                  <p class="field-error constraint-error" id="constraint-error" role="alert">
                    ${
                      error.line !== null &&
                      html`<strong>${t("write.place", { line: error.line, column: error.column ?? 1 })}</strong> `
                    }
                    ${error.message}
                  </p>
                `
              : html`<p class="muted small">${t(`write.hint.${kind}`)}</p>`
          }
          ${
            text === "" &&
            html`
              <div class="row">
                <button type="button" class="button" onClick=${() => write(EXAMPLES[kind])}>${t("write.example")}</button>
              </div>
            `
          }
        `
      }
    </div>
  `;
}

/**
 * Ask the server a moment after each change whether it can use the constraint.
 * @param {ConstraintKind} kind
 * @param {string} text
 */
function useCheck(kind, text) {
  useEffect(() => {
    constraintError.set(null);
    const fields = constraintFields();
    if (Object.keys(fields).length === 0) return undefined;
    const leaving = new AbortController();
    const timer = setTimeout(() => check(fields, leaving.signal), CHECK_MS);
    return () => {
      clearTimeout(timer);
      leaving.abort();
    };
  }, [kind, text]);
}

/** @param {Record<string, string>} fields @param {AbortSignal} signal */
async function check(fields, signal) {
  const [field] = Object.keys(fields);
  try {
    await post("/completion", { prompt: [0], n_predict: 0, response_fields: ["stop"], ...fields }, { signal });
  } catch (error) {
    if (!(error instanceof ApiError) || error.param !== field) return; // reported when the text is continued
    constraintError.set({ message: reasonOf(error.message), line: error.line, column: error.column });
  }
}

/**
 * Return the reason in the server's error, without the text that was sent.
 * @param {string} message
 */
export const reasonOf = (message) => /that can be used: ([\s\S]*)$/.exec(message)?.[1] ?? message;

/** @param {string} text @param {number | null} wrong */
function linesOf(text, wrong) {
  return text
    .split("\n")
    .map((_, index) => html`<span key=${index} class=${index + 1 === wrong ? "is-wrong" : ""}>${index + 1}</span>`);
}

/**
 * @param {HTMLElement} behind
 * @param {string} text
 * @param {import("./settings.js").ConstraintError | null} error
 */
function paintError(behind, text, error) {
  if (error?.line == null) {
    behind.replaceChildren(`${text}\u200b`);
    return;
  }
  const lines = text.split("\n");
  const start = lines.slice(0, error.line - 1).reduce((sum, line) => sum + line.length + 1, 0);
  const line = lines[error.line - 1] ?? "";
  const before = [...line].slice(0, (error.column ?? 1) - 1).join("").length; // the server counts whole characters
  const word = /^(?:[\w-]+|.)/su.exec(line.slice(before))?.[0] ?? "";
  const mark = document.createElement("mark");
  mark.textContent = word || "\u200b";
  mark.classList.toggle("is-empty", word === "");
  const at = start + before;
  behind.replaceChildren(text.slice(0, at), mark, `${text.slice(at + word.length)}\u200b`);
}
