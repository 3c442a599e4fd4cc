// The batches of the API key: how far each has come, and buttons to cancel it and to read its results.

import { post } from "../../api.js";
import { Button } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { formatSpan, formatTime } from "../../components/format.js";
import { notifyError } from "../../components/notices.js";
import { usePolling } from "../../components/polling.js";
import { listFiles } from "../../job_files.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useState } from "../../vendor/preact.js";
import { isRunning, listBatches } from "./calls.js";
import { NewBatchDialog } from "./new_batch.js";
import { ResultsDialog } from "./results.js";

const SECONDS = 2;
const SHOWN_ERRORS = 20;

/** @typedef {import("./calls.js").Batch} Batch */

export function BatchesPart() {
  const { value, error, reload } = usePolling(load, SECONDS, []);
  const [making, setMaking] = useState(false);
  const [read, setRead] = useState(/** @type {Batch | null} */ (null));
  return html`
    <div class="stack">
      <div class="bar">
        <${Button} kind="main" icon="plus" onClick=${() => setMaking(true)}>${t("jobs.new")}<//>
        <p class="muted small">${t("jobs.batches.about")}</p>
      </div>
      ${error && html`<${Failure} error=${error} />`}
      ${value && value.batches.length === 0 && html`<p class="empty">${t("jobs.noBatches")}</p>`}
      <ul class="jobs-list" aria-label=${t("jobs.batches")}>
        ${value?.batches.map(
          (batch) => html`
            <${BatchItem}
              key=${batch.id}
              batch=${batch}
              name=${value.names.get(batch.input_file_id) ?? batch.input_file_id}
              onRead=${() => setRead(batch)}
              onChange=${reload}
            />
          `,
        )}
      </ul>
      ${value?.hasMore && html`<p class="muted small">${t("jobs.older", { count: formatNumber(value.batches.length) })}</p>`}
      ${making && html`<${NewBatchDialog} onClose=${() => setMaking(false)} onBegun=${reload} />`}
      ${read && html`<${ResultsDialog} batch=${read} onClose=${() => setRead(null)} />`}
    </div>
  `;
}

/** @param {AbortSignal} signal */
async function load(signal) {
  const [batches, files] = await Promise.all([listBatches(signal), listFiles(signal)]);
  const names = new Map(files.map(({ id, filename }) => [id, filename]));
  return { batches: batches.data, hasMore: batches.has_more, names };
}

/** @param {{batch: Batch, name: string, onRead: () => void, onChange: () => void}} props */
function BatchItem({ batch, name, onRead, onChange }) {
  const { status, request_counts: counts } = batch;
  const done = counts.completed + counts.failed;
  const cancel = async () => {
    try {
      await post(`/v1/batches/${batch.id}/cancel`, undefined);
    } catch (error) {
      notifyError(error);
    }
    onChange();
  };
  return html`
    <li class="card" aria-label=${name}>
      <div class="card-head">
        <h2>${name}</h2>
        <span class=${`jobs-status is-${status}`}>${t(`jobs.status.${status}`)}</span>
      </div>
      ${
        isRunning(batch) &&
        html`<progress max=${counts.total || 1} value=${counts.total ? done : undefined} aria-label=${t("jobs.progress")}></progress>`
      }
      <div class="row">
        <ul class="facts grow">
          ${factsOf(batch).map((fact) => html`<li key=${fact}>${fact}</li>`)}
        </ul>
        ${
          (batch.output_file_id || batch.error_file_id) &&
          html`<${Button} aria-label=${t("jobs.results_of", { name })} onClick=${onRead}>${t("jobs.results")}<//>`
        }
        ${
          isRunning(batch) &&
          status !== "cancelling" &&
          html`<${Button} aria-label=${t("jobs.cancel_of", { name })} onClick=${cancel}>${t("jobs.cancel")}<//>`
        }
      </div>
      ${batch.errors && html`<${Errors} errors=${batch.errors.data} />`}
    </li>
  `;
}

/** @param {Batch} batch @returns {string[]} */
function factsOf(batch) {
  const { completed, failed, total } = batch.request_counts;
  const tokens = batch.usage.total_tokens;
  const finish = batch.estimated_finish;
  return [
    total > 0 && t("jobs.done", { done: formatNumber(completed), total: formatNumber(total) }),
    failed > 0 && t("jobs.failed", { count: formatNumber(failed) }),
    tokens > 0 && t("jobs.tokens", { count: formatNumber(tokens) }),
    finish !== null && t("jobs.left", { time: formatSpan(Math.max(0, finish - Date.now() / 1000)) }),
    batch.endpoint,
    formatTime(batch.created_at),
  ].filter((fact) => fact !== false);
}

/** @param {{errors: import("./calls.js").BatchError[]}} props */
function Errors({ errors }) {
  return html`
    <div class="failure jobs-errors" role="alert">
      <ul>
        ${errors
          .slice(0, SHOWN_ERRORS)
          .map(
            ({ line, message }) => html`
              <li key=${line}>${line === null ? message : t("jobs.error.line", { line: formatNumber(line), message })}</li>
            `,
          )}
      </ul>
      ${errors.length > SHOWN_ERRORS && html`<p>${t("jobs.error.more", { count: formatNumber(errors.length - SHOWN_ERRORS) })}</p>`}
    </div>
  `;
}
