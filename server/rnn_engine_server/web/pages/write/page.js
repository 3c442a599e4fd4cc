// The page Write: a text that the model continues, with the probability and the alternatives of each token.

import { Button } from "../../components/button.js";
import { isEscape } from "../../components/keys.js";
import { chosenModel, models } from "../../server.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useCallback, useEffect, useState } from "../../vendor/preact.js";
import { Alternatives } from "./alternatives.js";
import { BranchList } from "./branch_list.js";
import { currentBranch } from "./branches.js";
import { cellAt } from "./cells.js";
import { ConstraintForm } from "./constraint_form.js";
import { Editor } from "./editor.js";
import { TEXTS } from "./examples.js";
import { SamplingSection } from "./sampling_section.js";
import { branches, clear, currentText, fork, goOn, restored, retry, running, score, stop, undo, write } from "./session.js";
import { constraint, constraintError } from "./settings.js";
import { Status } from "./status.js";

export function Page() {
  const [ready, setReady] = useState(false);
  const [caret, setCaret] = useState(-1);
  useStore(branches);
  useStore(models);
  useStore(chosenModel);
  useStopAtEscape();
  useEffect(() => void restored.then(() => setReady(true)), []);
  const { cells } = currentText();
  const place = caret === -1 ? -1 : cellAt(cells, caret);
  const onCaret = useCallback(setCaret, []);
  if (!ready) return null;
  return html`
    <div class="write">
      <h1 class="unseen">${t("nav.write")}</h1>
      <section class="write-main" aria-label=${t("write.text")}>
        <${Toolbar} />
        <${Editor} onCaret=${onCaret} onGoOn=${goOn} marked=${place} />
        <${Examples} />
        <${Status} />
      </section>
      <aside class="write-side" aria-label=${t("write.side")}>
        <section class="panel" aria-label=${t("write.token")}>
          <h2>${t("write.token")}</h2>
          <p class="muted small" id="write-hint">${t("write.hint")}</p>
          ${
            place !== -1 &&
            html`<${Alternatives}
              cell=${cells[place]}
              onChoose=${(/** @type {number} */ index, /** @type {any} */ chosen) => fork(place, index, chosen)}
            />`
          }
        </section>
        <${Section} name="branches" title=${t("write.branches")}><${BranchList} /><//>
        <${ConstraintSection} />
        <${Section} name="sampling" title=${t("write.sampling")} closed><${SamplingSection} /><//>
      </aside>
    </div>
  `;
}

function useStopAtEscape() {
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const stopAtEscape = (event) => isEscape(event) && stop();
    addEventListener("keydown", stopAtEscape);
    return () => removeEventListener("keydown", stopAtEscape);
  }, []);
}

function Toolbar() {
  const isRunning = useStore(running) !== null;
  const branch = currentBranch(useStore(branches));
  const isEmpty = branch.text.content === "";
  return html`
    <div class="row write-bar" role="group" aria-label=${t("write.actions")}>
      ${
        isRunning
          ? html`<${Button} kind="main" icon="stop" onClick=${stop} title=${t("write.stop.hint")}>${t("write.stop")}<//>`
          : html`<${Button} kind="main" icon="write" onClick=${goOn} title=${t("write.goOn.hint")}>${t("write.goOn")}<//>`
      }
      <${Button} icon="left" disabled=${branch.parent === null} onClick=${undo} title=${t("write.undo.hint")}>
        ${t("write.undo")}
      <//>
      <${Button}
        icon="retry"
        disabled=${branch.parent === null || branch.kind === "start"}
        onClick=${retry}
        title=${t("write.retry.hint")}
      >
        ${t("write.retry")}
      <//>
      <${Button} icon="score" disabled=${isEmpty || isRunning} onClick=${score} title=${t("write.score.hint")}>
        ${t("write.score")}
      <//>
      <${Button} kind="quiet" icon="plus" disabled=${isEmpty} onClick=${clear}>${t("write.new")}<//>
    </div>
  `;
}

/** Examples for a new user; hidden as soon as there is a text. */
function Examples() {
  if (currentText().content !== "") return null;
  return html`
    <div class="row write-examples">
      <span class="muted small">${t("write.try")}</span>
      ${TEXTS.map(
        (text) => html`<button type="button" class="button" key=${text} onClick=${() => write(text)}>${nameOf(text)}</button>`,
      )}
    </div>
  `;
}

/** @param {string} text */
const nameOf = (text) => text.replace(/^User: |\n[\s\S]*$/g, "");

function ConstraintSection() {
  const { kind } = useStore(constraint);
  const error = useStore(constraintError);
  const state = kind === "none" ? "" : error ? t("write.constraint.wrong") : t(`write.constraint.${kind}`);
  return html`
    <${Section} name="constraint" title=${t("write.constraint")} state=${state} closed=${kind === "none"}>
      <${ConstraintForm} />
    <//>
  `;
}

/** @param {{name: string, title: string, state?: string, closed?: boolean, children?: any}} props */
function Section({ name, title, state, closed = false, children }) {
  const [open, setOpen] = useState(!closed);
  return html`
    <details class="panel" open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)} data-name=${name}>
      <summary><h2>${title}</h2>${state && html`<span class="muted small">${state}</span>`}</summary>
      ${open && children}
    </details>
  `;
}
