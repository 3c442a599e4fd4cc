// The status of the engines, which the server sends each second, and the rates between two such moments.

import { stream } from "../../api.js";
import { isRefused } from "../../components/polling.js";
import { useEffect, useState } from "../../vendor/preact.js";

export const KEPT_SECONDS = 120;
const AGAIN_MS = 2000;

/**
 * @typedef {object} SlotStatus
 * @property {number} slot
 * @property {number} request
 * @property {"prompt" | "decode" | "paused"} phase
 * @property {string | null} owner
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} run_tokens
 * @property {number} generated_tokens
 * @property {number} max_tokens
 */

/**
 * @typedef {object} EngineStatus One model, as /v1/engine tells it.
 * @property {string} model
 * @property {{status: string, reason: string | null}} health
 * @property {string} device
 * @property {string} weights
 * @property {number} num_slots
 * @property {SlotStatus[]} slots
 * @property {number} queued
 * @property {Record<string, number>} requests
 * @property {Record<"prompt" | "cached" | "prefill" | "decode" | "generated", number>} tokens
 * @property {{steps: number, failed: number, tokens: number, host_seconds: number, device_seconds: number}} steps
 * @property {Record<string, any> | null} cache
 * @property {{tier: string, hits: number, used: number, capacity: number}[]} tiers
 * @property {{place: string, part: string, used: number, capacity: number | null}[]} memory
 */

/**
 * @typedef {object} ServerStatus
 * @property {number} time
 * @property {number} started
 * @property {number} requests
 * @property {number} connections
 * @property {number | null} cpu_seconds
 * @property {number | null} resident_bytes
 * @property {string} default
 * @property {boolean} model_folder
 * @property {Record<string, string>} models
 * @property {Record<string, {what: string, done: number, total: number} | null>} loading
 * @property {EngineStatus[]} engines
 */

/**
 * @typedef {object} Sample What happened in one second, or in the time between two events. Null: nothing was run.
 * @property {number} time
 * @property {number} prefill Tokens a second.
 * @property {number} generated Tokens a second.
 * @property {number | null} host Milliseconds of a step.
 * @property {number | null} device Milliseconds of a step.
 * @property {number} busy Slots.
 * @property {number} queued
 * @property {number} hits Look-ups of the cache.
 * @property {number} misses
 */

/**
 * @typedef {object} Live
 * @property {ServerStatus} [status]
 * @property {ServerStatus} [previous] The moment before.
 * @property {ReadonlyMap<string, Sample[]>} samples Of the last two minutes, by model.
 * @property {Error} [error] Why nothing comes any more.
 */

/**
 * Return the server's latest status, which is followed while the component is shown.
 * @returns {Live}
 */
export function useEngineStatus() {
  const [live, setLive] = useState(/** @type {Live} */ ({ samples: new Map() }));
  useEffect(() => {
    const stopping = new AbortController();
    follow(stopping.signal, setLive);
    return () => stopping.abort();
  }, []);
  return live;
}

/** @param {AbortSignal} signal @param {(change: (live: Live) => Live) => void} change */
async function follow(signal, change) {
  while (!signal.aborted) {
    try {
      for await (const status of stream("/v1/engine/events?interval=1", undefined, { signal })) {
        change((live) => withStatus(live, status));
      }
    } catch (error) {
      if (!signal.aborted) change((live) => ({ ...live, error: /** @type {Error} */ (error) }));
      if (isRefused(error)) return;
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
  }
}

/** @param {Live} live @param {ServerStatus} status @returns {Live} */
function withStatus({ status: previous, samples }, status) {
  const kept = status.engines.map(({ model }) => {
    const sample = previous && sampleOf(status, previous, model);
    const list = sample === undefined ? [] : [...(samples.get(model) ?? []), sample].slice(-KEPT_SECONDS);
    return /** @type {[string, Sample[]]} */ ([model, list]);
  });
  return { status, previous, samples: new Map(kept) };
}

/**
 * Return what one model did between two moments; undefined if it was loaded anew meanwhile.
 * @param {ServerStatus} status
 * @param {ServerStatus} previous
 * @param {string} model
 * @returns {Sample | undefined}
 */
function sampleOf(status, previous, model) {
  const [now, before] = [status, previous].map(({ engines }) => engines.find((engine) => engine.model === model));
  const seconds = status.time - previous.time;
  if (!now || !before || seconds <= 0 || now.steps.steps < before.steps.steps) return undefined;
  const steps = now.steps.steps - before.steps.steps;
  /** @param {"host_seconds" | "device_seconds"} part */
  const ofStep = (part) => (steps === 0 ? null : (1000 * (now.steps[part] - before.steps[part])) / steps);
  /** @param {"hits" | "look_ups"} count */
  const looked = (count) => (now.cache?.[count] ?? 0) - (before.cache?.[count] ?? 0);
  return {
    time: status.time,
    prefill: (now.tokens.prefill - before.tokens.prefill) / seconds,
    generated: (now.tokens.generated - before.tokens.generated) / seconds,
    host: ofStep("host_seconds"),
    device: ofStep("device_seconds"),
    busy: now.slots.length,
    queued: now.queued,
    hits: looked("hits"),
    misses: looked("look_ups") - looked("hits"),
  };
}
