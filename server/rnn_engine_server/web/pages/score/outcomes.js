// The outcomes of a table's questions: the share of right answers, a line for each question, and a file of all.

import { Button } from "../../components/button.js";
import { saveFile } from "../../components/save_file.js";
import { percentOf } from "../../components/token_names.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { formatTable } from "./csv.js";
import { accuracyOf } from "./run.js";

/** @typedef {import("./items.js").Item} Item */
/** @typedef {import("./run.js").Outcome} Outcome */

const SHOWN = 200; // lines at a time

/** @param {{items: Item[], outcomes: (Outcome | undefined)[], isRunning: boolean}} props */
export function Outcomes({ items, outcomes, isRunning }) {
  const [wrongOnly, setWrongOnly] = useState(false);
  const { done, right, share, error, guessed } = accuracyOf(items, outcomes);
  const percent = (/** @type {number} */ value) => formatNumber(100 * value, 1);
  return html`
    <section class="stack" aria-label=${t("score.outcomes")}>
      <div class="score-sum">
        <p class="score-accuracy">
          <strong>${percent(share)} %</strong>
          ${error !== null && html`<span class="muted">± ${percent(error)}</span>`}
        </p>
        <p class="muted">
          ${t("score.right", { right: formatNumber(right), done: formatNumber(done), percent: percent(guessed) })}
        </p>
      </div>
      <progress
        max=${items.length}
        value=${done}
        aria-label=${t("score.progress", { done: formatNumber(done), all: formatNumber(items.length) })}
      ></progress>
      <p class="unseen" role="status">${!isRunning && t("score.progress", { done, all: items.length })}</p>
      <div class="row">
        <label class="check">
          <input
            type="checkbox"
            checked=${wrongOnly}
            onChange=${(/** @type {any} */ event) => setWrongOnly(event.target.checked)}
          />
          ${t("score.wrongOnly")}
        </label>
        <${Button} icon="download" disabled=${done === 0} onClick=${() => download(items, outcomes)}>
          ${t("score.download")}
        <//>
      </div>
      <${Lines} items=${items} outcomes=${outcomes} wrongOnly=${wrongOnly} />
    </section>
  `;
}

/** @param {{items: Item[], outcomes: (Outcome | undefined)[], wrongOnly: boolean}} props */
function Lines({ items, outcomes, wrongOnly }) {
  const places = [...items.keys()].filter((place) => {
    const outcome = outcomes[place];
    return outcome !== undefined && !(wrongOnly && outcome.right);
  });
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${t("score.outcomes")}>
      <table class="list">
        <thead>
          <tr>
            <th scope="col" class="is-minor">${t("score.line")}</th>
            <th scope="col">${t("score.question")}</th>
            <th scope="col">${t("score.chosen")}</th>
            <th scope="col" class="is-minor">${t("score.answer")}</th>
            <th scope="col" class="number">${t("score.probability")}</th>
          </tr>
        </thead>
        <tbody>
          ${places.slice(0, SHOWN).map((place) => {
            const { line, question, choices, answer } = items[place];
            const { chosen, probability, right } = /** @type {Outcome} */ (outcomes[place]);
            return html`
              <tr key=${place} class=${right ? "is-right" : "is-wrong"}>
                <td class="is-minor number">${formatNumber(line)}</td>
                <td>${question}</td>
                <td><span class="score-mark">${t(right ? "score.isRight" : "score.isWrong")}</span> ${choices[chosen]}</td>
                <td class="is-minor">${choices[answer]}</td>
                <td class="number">${percentOf(Math.log(probability))}</td>
              </tr>
            `;
          })}
        </tbody>
      </table>
    </div>
    ${places.length > SHOWN && html`<p class="muted small">${t("score.more", { count: formatNumber(SHOWN) })}</p>`}
  `;
}

/** @param {Item[]} items @param {(Outcome | undefined)[]} outcomes */
function download(items, outcomes) {
  const rows = items.flatMap(({ line, question, choices, answer }, place) => {
    const outcome = outcomes[place];
    if (outcome === undefined) return [];
    const { chosen, probability, right } = outcome;
    return [[line, question, choices[answer], choices[chosen], probability, right ? 1 : 0]];
  });
  const names = ["line", "question", "answer", "chosen", "probability", "right"];
  saveFile("scores.csv", formatTable([names, ...rows]), "text/csv");
}
