// The first results of a batch, each with its question, and its files to save.

import { send } from "../../api.js";
import { Button } from "../../components/button.js";
import { Dialog } from "../../components/dialog.js";
import { Failure } from "../../components/failure.js";
import { notifyError } from "../../components/notices.js";
import { saveFile } from "../../components/save_file.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { linesOf } from "./calls.js";
import { answerText, questionText } from "./texts.js";

const SHOWN = 50; // results of each file
const MOST_SEARCHED = 20_000; // lines of the file of requests

/** @typedef {import("./calls.js").Batch} Batch */
/** @typedef {{id: string, question: string, answer: string, failed: boolean}} Result */

/** @param {{batch: Batch, onClose: () => void}} props */
export function ResultsDialog({ batch, onClose }) {
  const [results, setResults] = useState(/** @type {Result[] | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  useEffect(() => {
    const stopping = new AbortController();
    load(batch, stopping.signal).then(setResults, (failure) => !stopping.signal.aborted && setError(failure));
    return () => stopping.abort();
  }, [batch.id]);
  const { completed, failed } = batch.request_counts;
  return html`
    <${Dialog} title=${t("jobs.results")} wide onClose=${onClose}>
      <div class="stack">
        <div class="row">
          ${
            batch.output_file_id &&
            html`<${Save} id=${batch.output_file_id} name=${`${batch.id}_output.jsonl`} label=${t("jobs.save", { count: formatNumber(completed) })} />`
          }
          ${
            batch.error_file_id &&
            html`<${Save} id=${batch.error_file_id} name=${`${batch.id}_errors.jsonl`} label=${t("jobs.saveErrors", { count: formatNumber(failed) })} />`
          }
        </div>
        ${error && html`<${Failure} error=${error} />`}
        ${
          results &&
          html`
            <ol class="jobs-results" aria-label=${t("jobs.results")}>
              ${results.map(
                ({ id, question, answer, failed }) => html`
                  <li key=${id}>
                    <code class="jobs-id">${id}</code>
                    ${question && html`<p class="jobs-question">${question}</p>`}
                    <p class=${failed ? "jobs-answer is-failed" : "jobs-answer"}>${answer}</p>
                  </li>
                `,
              )}
            </ol>
            ${results.length < completed + failed && html`<p class="muted small">${t("jobs.first", { count: formatNumber(results.length) })}</p>`}
          `
        }
      </div>
    <//>
  `;
}

/** @param {{id: string, name: string, label: string}} props */
function Save({ id, name, label }) {
  const save = async () => {
    try {
      saveFile(name, await (await send("GET", `/v1/files/${id}/content`)).blob());
    } catch (error) {
      notifyError(error);
    }
  };
  return html`<${Button} icon="download" onClick=${save}>${label}<//>`;
}

/**
 * Load the first results: the failed ones first. Their questions are missing if the file of requests is gone.
 * @param {Batch} batch
 * @param {AbortSignal} signal
 * @returns {Promise<Result[]>}
 */
async function load({ input_file_id, output_file_id, error_file_id, endpoint }, signal) {
  const failed = error_file_id === null ? [] : await first(linesOf(error_file_id, signal), SHOWN);
  const answered = output_file_id === null ? [] : await first(linesOf(output_file_id, signal), SHOWN);
  const lines = [...failed, ...answered];
  const questions = await questionsOf(input_file_id, new Set(lines.map(({ custom_id }) => custom_id)), signal);
  return lines.map((line, place) => ({
    id: line.custom_id,
    question: questions.get(line.custom_id) ?? "",
    answer: answerText(endpoint, line),
    failed: place < failed.length,
  }));
}

/**
 * Return the questions of the requests with these ids.
 * @param {string} file
 * @param {Set<string>} ids
 * @param {AbortSignal} signal
 * @returns {Promise<Map<string, string>>}
 */
async function questionsOf(file, ids, signal) {
  /** @type {Map<string, string>} */
  const found = new Map();
  try {
    let searched = 0;
    for await (const { custom_id: id, body } of linesOf(file, signal)) {
      if (ids.has(id)) found.set(id, questionText(body));
      if (found.size === ids.size || ++searched === MOST_SEARCHED) break;
    }
  } catch (error) {
    if (signal.aborted) throw error; // else the file is gone
  }
  return found;
}

/**
 * Return the first values of a generator.
 * @template T
 * @param {AsyncGenerator<T, void, void>} values
 * @param {number} most
 * @returns {Promise<T[]>}
 */
async function first(values, most) {
  const found = [];
  for await (const value of values) {
    found.push(value);
    if (found.length === most) break;
  }
  return found;
}
