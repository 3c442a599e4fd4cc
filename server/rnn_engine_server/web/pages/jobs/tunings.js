// The tunings of the API key, which the page Tune shows one by one.

import { Failure } from "../../components/failure.js";
import { usePolling } from "../../components/polling.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { listTunings } from "../tune/calls.js";
import { TuningList } from "../tune/list.js";

const SECONDS = 3;

export function TuningsPart() {
  const { value, error } = usePolling(listTunings, SECONDS, []);
  return html`
    <div class="stack">
      <p><a class="button" href="#/tune">${t("jobs.newTuning")}</a></p>
      ${error && html`<${Failure} error=${error} />`}
      ${value && value.length === 0 && html`<p class="empty">${t("jobs.noTunings")}</p>`}
      ${value && html`<${TuningList} tunings=${value} />`}
    </div>
  `;
}
