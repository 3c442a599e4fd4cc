// One tuning: its status and losses, its answers beside the plain model's, and its states to keep.

import { Button } from "../../components/button.js";
import { send } from "../../api.js";
import { Failure } from "../../components/failure.js";
import { formatSpan, formatTime } from "../../components/format.js";
import { notifyError } from "../../components/notices.js";
import { usePolling } from "../../components/polling.js";
import { saveFile } from "../../components/save_file.js";
import { go } from "../../router.js";
import { chosenModel, loadModels } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { change, followEvents, hasEnded, loadTuning, stateOf } from "./calls.js";
import { Compare } from "./compare.js";
import { KeepDialog } from "./keep_dialog.js";
import { nameOf, TuningStatus } from "./list.js";
import { Losses } from "./losses.js";

const SECONDS = 2;
const SHOWN_MESSAGES = 50;

/** @typedef {import("./calls.js").Tuning} Tuning */
/** @typedef {import("./calls.js").TuningEvent} TuningEvent */
/**
 * @typedef {{model: string, title: string, file?: string, ending: string, isServed: boolean}} Tuned
 * A model that begins from a state of the tuning, or has a LoRA of it, which is a file.
 */

/** @param {{id: string}} props */
export function TuningPart({ id }) {
  const { value, error, reload } = usePolling((signal) => loadTuning(id, signal), SECONDS, [id]);
  const [events, setEvents] = useState(/** @type {TuningEvent[]} */ ([]));
  const [kept, setKept] = useState(/** @type {Tuned | null} */ (null));
  useEffect(() => {
    const stopping = new AbortController();
    followEvents(id, setEvents, stopping.signal);
    return () => stopping.abort();
  }, [id]);
  if (value === undefined) return error ? html`<${Failure} error=${error} />` : html`<p class="empty">${t("tune.waiting")}</p>`;
  const { tuning, checkpoints } = value;
  const tuned = tunedModels(value);
  const newest = tuned[0];
  return html`
    <div class="stack">
      <p><a href="#/tune">${t("tune.back")}</a></p>
      ${error && html`<${Failure} error=${error} />`}
      <${Head} tuning=${tuning} events=${events} onChange=${reload} />
      ${tuning.error && html`<div class="failure tune-error" role="alert">${tuning.error.message}</div>`}
      <div class="cards">
        <${Losses} events=${events} />
        <${Messages} events=${events} />
      </div>
      ${
        newest &&
        html`
          ${newest.isServed && html`<${Compare} plain=${tuning.model} tuned=${newest} />`}
          <${States} tuned=${tuned} onKeep=${setKept} />
        `
      }
      ${!newest && !hasEnded(tuning) && checkpoints.length === 0 && html`<p class="muted">${t("tune.noCheckpoint")}</p>`}
      ${kept && html`<${KeepDialog} state=${stateOf(kept.model, tuning)} model=${tuning.model} onClose=${() => setKept(null)} />`}
    </div>
  `;
}

/**
 * Return the models that begin from the states of a tuning, or its LoRAs: its result first, then its checkpoints.
 * @param {import("./calls.js").LoadedTuning} value
 * @returns {Tuned[]}
 */
function tunedModels({ tuning: { fine_tuned_model: result, result_files: files, hyperparameters }, checkpoints, served }) {
  const ending = hyperparameters.train_state ? ".state" : ".safetensors";
  const kept = checkpoints.map(({ fine_tuned_model_checkpoint: model, step_number: step, result_file: file }) => ({
    model,
    file,
    title: t("tune.checkpoint", { step: formatNumber(step) }),
  }));
  const all = result === null ? kept : [{ model: result, file: files[1], title: t("tune.result") }, ...kept];
  return all.map((each) => ({ ...each, ending, isServed: each.file === undefined || served.has(each.model) }));
}

/** @param {{tuning: Tuning, events: TuningEvent[], onChange: () => void}} props */
function Head({ tuning, events, onChange }) {
  const { status, estimated_finish: finish } = tuning;
  const last = events.findLast(({ data }) => data !== null)?.data;
  /** @param {"cancel" | "pause" | "resume"} action */
  const act = async (action) => {
    try {
      await change(tuning.id, action);
    } catch (error) {
      notifyError(error);
    }
    onChange();
  };
  const facts = [
    last && t("tune.steps", { done: formatNumber(last.step), all: formatNumber(last.total_steps) }),
    finish !== null && t("jobs.left", { time: formatSpan(Math.max(0, finish - Date.now() / 1000)) }),
    formatTime(tuning.created_at),
  ].filter(Boolean);
  return html`
    <section class="card" aria-label=${t("tune.state")}>
      <div class="card-head">
        <h1>${nameOf(tuning)}</h1>
        <${TuningStatus} status=${status} />
      </div>
      ${
        !hasEnded(tuning) &&
        html`<progress max=${last?.total_steps ?? 1} value=${last?.step} aria-label=${t("tune.progress")}></progress>`
      }
      <div class="row">
        <ul class="facts grow">
          ${facts.map((fact) => html`<li key=${fact}>${fact}</li>`)}
        </ul>
        ${["queued", "running"].includes(status) && html`<${Button} onClick=${() => act("pause")}>${t("tune.pause")}<//>`}
        ${status === "paused" && html`<${Button} onClick=${() => act("resume")}>${t("tune.resume")}<//>`}
        ${!hasEnded(tuning) && html`<${Button} onClick=${() => act("cancel")}>${t("tune.cancel")}<//>`}
      </div>
    </section>
  `;
}

/** @param {{events: TuningEvent[]}} props The newest message first. */
function Messages({ events }) {
  const messages = events.filter(({ data }) => data === null).slice(-SHOWN_MESSAGES).reverse();
  return html`
    <section class="card" aria-label=${t("tune.messages")}>
      <div class="card-head"><h2>${t("tune.messages")}</h2></div>
      <ul class="tune-messages" tabindex="0">
        ${messages.map(({ id, level, message }) => html`<li key=${id} class=${`is-${level}`}>${message}</li>`)}
      </ul>
    </section>
  `;
}

/** @param {{tuned: Tuned[], onKeep: (tuned: Tuned) => void}} props */
function States({ tuned, onKeep }) {
  /** @param {string} model */
  const chat = async (model) => {
    try {
      await loadModels();
      chosenModel.set(model);
      go("chat");
    } catch (error) {
      notifyError(error);
    }
  };
  /** @param {Tuned} tuned */
  const save = async ({ model, file, ending }) => {
    try {
      saveFile(model.replaceAll(":", "-") + ending, await (await send("GET", `/v1/files/${file}/content`)).blob());
    } catch (error) {
      notifyError(error);
    }
  };
  return html`
    <section>
      <h2 class="part-title">${t(tuned[0]?.file ? "tune.loras" : "tune.states")}</h2>
      <div class="table-box">
        <table class="list">
          <tbody>
            ${tuned.map(
              (each) => html`
                <tr key=${each.model}>
                  <th scope="row">${each.title}</th>
                  <td class="is-minor"><code>${each.model}</code></td>
                  <td class="is-end">
                    <div class="row is-end">
                      ${
                        each.file &&
                        html`<${Button} icon="download" onClick=${() => save(each)}>${t("jobs.file.save", { name: each.title })}<//>`
                      }
                      ${
                        each.isServed &&
                        html`
                          <${Button} icon="chat" aria-label=${t("tune.chat_with", { name: each.title })} onClick=${() => chat(each.model)}>
                            ${t("tune.chat")}
                          <//>
                          <${Button} icon="states" aria-label=${t("tune.keep_of", { name: each.title })} onClick=${() => onKeep(each)}>
                            ${t("tune.keep")}
                          <//>
                        `
                      }
                    </div>
                  </td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}
