// Calls about tunings, OpenAI's fine-tuning jobs, and what their answers mean.

import { get, post, stream } from "../../api.js";
import { uploadFile } from "../../job_files.js";
import { models, modelName } from "../../server.js";

/** @typedef {"validating_files" | "queued" | "running" | "paused" | "succeeded" | "failed" | "cancelled"} TuningStatus */

/**
 * @typedef {object} Tuning As /v1/fine_tuning/jobs describes it; times are Unix seconds.
 * @property {string} id
 * @property {string} model
 * @property {TuningStatus} status
 * @property {string | null} fine_tuned_model
 * @property {number} created_at
 * @property {number | null} estimated_finish
 * @property {string} training_file
 * @property {{message: string} | null} error
 * @property {Hyperparameters} hyperparameters
 * @property {string[]} result_files The figures, and then a LoRA's file.
 */

/** @typedef {"auto" | number} OrAuto */
/** @typedef {{n_epochs: OrAuto, batch_size: OrAuto, learning_rate_multiplier: OrAuto, rank?: number, train_state?: boolean}} Hyperparameters */

/**
 * @typedef {object} TuningEvent
 * @property {string} id
 * @property {number} created_at
 * @property {"info" | "warn" | "error"} level
 * @property {string} message
 * @property {{step: number, total_steps: number, train_loss?: number | null, valid_loss?: number | null} | null} data
 */

/**
 * @typedef {{id: string, fine_tuned_model_checkpoint: string, step_number: number, metrics: {valid_loss: number | null}, result_file?: string}} Checkpoint
 * Only a LoRA is in a file.
 */

const JOBS = "/v1/fine_tuning/jobs";
const MOST_TUNINGS = 100;
const PAUSE_MS = 2000; // before the events of a broken stream are asked for again
const SHOW_MS = 200; // between two calls of `take`

/** @param {string} id @param {string} [below] */
const address = (id, below = "") => `${JOBS}/${encodeURIComponent(id)}${below}`;

/** @param {AbortSignal} signal @returns {Promise<Tuning[]>} The newest ones. */
export const listTunings = async (signal) => (await get(`${JOBS}?limit=${MOST_TUNINGS}`, { signal })).data;

/** @typedef {{tuning: Tuning, checkpoints: Checkpoint[], served: Set<string>}} LoadedTuning Newest checkpoint first; names of models. */

/** @param {string} id @param {AbortSignal} signal @returns {Promise<LoadedTuning>} */
export async function loadTuning(id, signal) {
  const [tuning, checkpoints, served] = await Promise.all([
    get(address(id), { signal }),
    get(address(id, "/checkpoints"), { signal }),
    get("/v1/models", { signal }),
  ]);
  return { tuning, checkpoints: checkpoints.data, served: new Set(served.data.map((/** @type {{id: string}} */ model) => model.id)) };
}

/** @param {string} id @param {"cancel" | "pause" | "resume"} action */
export const change = (id, action) => post(address(id, `/${action}`), undefined);

/** @param {Tuning} tuning */
export const hasEnded = ({ status }) => ["succeeded", "failed", "cancelled"].includes(status);

/** Return the name of the chosen model without the state that it may begin from. */
export const baseModel = () => models.get().find(({ id }) => id === modelName())?.parent ?? modelName();

/** Return the name of the state in a tuned model's name. @param {string} model @param {Tuning} tuning */
export const stateOf = (model, tuning) => model.slice(tuning.model.length + 1);

/**
 * Begin to tune the chosen model with examples.
 * @param {string} examples JSONL.
 * @param {string} suffix Of the tuned model's name; may be empty.
 * @param {Partial<Hyperparameters>} hyperparameters With a rank, they are those of a LoRA.
 * @returns {Promise<Tuning>}
 */
export async function beginTuning(examples, suffix, hyperparameters) {
  const { id } = await uploadFile(new File([examples], `${suffix || "examples"}.jsonl`), "fine-tune");
  const type = hyperparameters.rank === undefined ? "state" : "lora";
  const method = { type, [type]: { hyperparameters } };
  return post(JOBS, { model: baseModel(), training_file: id, method, ...(suffix && { suffix }) });
}

/**
 * Read the events of a tuning, the oldest first, and further ones as they come, until it has ended.
 * @param {string} id
 * @param {(events: TuningEvent[]) => void} take Gets all events so far.
 * @param {AbortSignal} signal
 */
export async function followEvents(id, take, signal) {
  while (!signal.aborted) {
    /** @type {TuningEvent[]} */
    const events = [];
    const timer = setInterval(() => events.length > 0 && take([...events]), SHOW_MS);
    try {
      for await (const event of stream(address(id, "/events?stream=true"), undefined, { signal })) events.push(event);
      take(events);
      if (hasEnded(await get(address(id), { signal }))) return;
    } catch (error) {
      if (signal.aborted) return;
    } finally {
      clearInterval(timer);
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}
