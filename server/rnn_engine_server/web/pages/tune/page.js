// The page Tune: a form for a new tuning, the list of tunings, and a view of one with its losses and answers.

import { Failure } from "../../components/failure.js";
import { usePolling } from "../../components/polling.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { listTunings } from "./calls.js";
import { TuningList } from "./list.js";
import { NewTuning } from "./new_tuning.js";
import { restored } from "./state.js";
import { TuningPart } from "./tuning.js";

const SECONDS = 3;

/** @param {{rest: string}} props `rest`: the id of a tuning. */
export function Page({ rest }) {
  return html`<div class="page jobs">${rest === "" ? html`<${Begin} />` : html`<${TuningPart} key=${rest} id=${rest} />`}</div>`;
}

function Begin() {
  const [ready, setReady] = useState(false);
  useEffect(() => void restored.then(() => setReady(true)), []);
  const { value, error } = usePolling(listTunings, SECONDS, []);
  return html`
    <div class="stack">
      <h1>${t("tune.title")}</h1>
      <p class="lead muted">${t("tune.about")}</p>
      ${ready && html`<${NewTuning} />`}
      ${error && html`<${Failure} error=${error} />`}
      ${value && value.length > 0 && html`<h2 class="part-title">${t("tune.list")}</h2><${TuningList} tunings=${value} />`}
    </div>
  `;
}
