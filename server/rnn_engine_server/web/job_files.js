// The files of jobs: uploaded ones and results.

import { get, send } from "./api.js";

/** @typedef {{id: string, filename: string, bytes: number, purpose: string, created_at: number, expires_at?: number}} JobFile */

/** @param {AbortSignal} signal @returns {Promise<JobFile[]>} */
export const listFiles = async (signal) => (await get("/v1/files", { signal })).data;

/**
 * Upload a file for a job.
 * @param {File} file
 * @param {"batch" | "fine-tune"} purpose
 * @returns {Promise<JobFile>}
 */
export async function uploadFile(file, purpose) {
  const form = new FormData();
  form.append("purpose", purpose); // first, so that a wrong one is refused before the file is sent
  form.append("file", file);
  return (await send("POST", "/v1/files", { body: form })).json();
}
