// Two fields to type an example.

import { Button } from "../../components/button.js";
import { t } from "../../strings/index.js";
import { html, useRef, useState } from "../../vendor/preact.js";
import { exampleLine } from "./examples.js";

/** @param {{onAdd: (line: string) => void}} props `onAdd` gets the example as a line of JSON. */
export function AddExample({ onAdd }) {
  const [question, setQuestion] = useState("");
  const [answer, setAnswer] = useState("");
  const first = useRef(/** @type {HTMLInputElement | null} */ (null));
  /** @param {Event} event */
  const add = (event) => {
    event.preventDefault();
    onAdd(exampleLine([question, answer]));
    setQuestion("");
    setAnswer("");
    first.current?.focus();
  };
  return html`
    <form class="row tune-add" onSubmit=${add}>
      <label class="field grow">
        <span>${t("tune.question")}</span>
        <input ref=${first} required value=${question} onInput=${(/** @type {any} */ event) => setQuestion(event.target.value)} />
      </label>
      <label class="field grow">
        <span>${t("tune.answer")}</span>
        <input required value=${answer} onInput=${(/** @type {any} */ event) => setAnswer(event.target.value)} />
      </label>
      <${Button} icon="plus" type="submit">${t("tune.add")}<//>
    </form>
  `;
}
