// A dialog that asks for the API key when the server answers that the key is missing or wrong.

import { onKeyNeeded } from "../api.js";
import { t } from "../strings/index.js";
import { html, useLayoutEffect, useState } from "../vendor/preact.js";
import { Button } from "./button.js";
import { Dialog } from "./dialog.js";

/** @typedef {{wrong: boolean, answer: (key: string | null) => void}} Question */

export function KeyDialog() {
  const [question, setQuestion] = useState(/** @type {Question | null} */ (null));
  const [key, setKey] = useState("");
  // Before the first call is sent: an effect that waits for a paint may come after its answer.
  useLayoutEffect(() => {
    onKeyNeeded((wrong) => new Promise((answer) => setQuestion({ wrong, answer })));
  }, []);
  if (question === null) return null;
  /** @param {string | null} given */
  const close = (given) => {
    setQuestion(null);
    setKey("");
    question.answer(given);
  };
  return html`
    <${Dialog} title=${t("key.title")} onClose=${() => close(null)}>
      <form
        class="stack"
        onSubmit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          close(key.trim() || null);
        }}
      >
        <p id="key-text" role=${question.wrong ? "alert" : undefined}>${t(question.wrong ? "key.wrong" : "key.needed")}</p>
        <label class="field">
          <span>${t("key.label")}</span>
          <input
            type="password"
            autocomplete="current-password"
            aria-describedby="key-text"
            autofocus
            value=${key}
            onInput=${(/** @type {any} */ event) => setKey(event.target.value)}
          />
        </label>
        <div class="row is-end"><${Button} kind="main" type="submit">${t("key.use")}<//></div>
      </form>
    <//>
  `;
}
