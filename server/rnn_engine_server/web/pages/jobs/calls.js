// Calls about batches, and what their answers mean.

import { get, post, send } from "../../api.js";
import { uploadFile } from "../../job_files.js";
import { t } from "../../strings/index.js";

/** @typedef {"validating" | "failed" | "in_progress" | "finalizing" | "completed" | "expired" | "cancelling" | "cancelled"} BatchStatus */
/** @typedef {{message: string, line: number | null}} BatchError */
/** @typedef {{total: number, completed: number, failed: number}} Counts */

/**
 * @typedef {object} Batch As /v1/batches describes it; times are Unix seconds.
 * @property {string} id
 * @property {string} endpoint
 * @property {BatchStatus} status
 * @property {string} input_file_id
 * @property {string | null} output_file_id
 * @property {string | null} error_file_id
 * @property {{data: BatchError[]} | null} errors
 * @property {number} created_at
 * @property {number | null} estimated_finish
 * @property {Counts} request_counts
 * @property {{total_tokens: number}} usage
 */

const MOST_BATCHES = 100;

/**
 * Return the newest batches, and if there are more.
 * @param {AbortSignal} signal
 * @returns {Promise<{data: Batch[], has_more: boolean}>}
 */
export const listBatches = (signal) => get(`/v1/batches?limit=${MOST_BATCHES}`, { signal });

/** @param {Batch} batch */
export const isRunning = ({ status }) => ["validating", "in_progress", "finalizing", "cancelling"].includes(status);

/**
 * Begin a batch of the requests in a file, which all go to the address of the first. Throws an Error if it has none.
 * @param {File} file
 * @param {string} window Such as "24h".
 * @returns {Promise<Batch>}
 */
export async function beginBatch(file, window) {
  const endpoint = await endpointOf(file);
  const { id } = await uploadFile(file, "batch");
  return post("/v1/batches", { input_file_id: id, endpoint, completion_window: window });
}

const FIRST_BYTES = 4_000_000;

/** @param {File} file @returns {Promise<string>} */
async function endpointOf(file) {
  const [first] = (await file.slice(0, FIRST_BYTES).text()).trimStart().split("\n", 1);
  try {
    const { url } = JSON.parse(first);
    if (typeof url === "string") return url;
  } catch {
    // as for a line without an address
  }
  throw new Error(t("jobs.noRequests", { name: file.name }));
}

/**
 * Yield the lines of a job's file, each as parsed JSON.
 * @param {string} id
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<any, void, void>}
 */
export async function* linesOf(id, signal) {
  const { body } = await send("GET", `/v1/files/${id}/content`, { signal });
  if (body === null) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : (lines.pop() ?? "");
      for (const line of lines) if (line.trim() !== "") yield JSON.parse(line);
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
