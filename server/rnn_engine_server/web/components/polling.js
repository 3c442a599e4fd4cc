// Loading a value again and again while the page is visible.

import { ApiError } from "../api.js";
import { useCallback, useEffect, useState } from "../vendor/preact.js";

/**
 * Return true if asking again is useless, since the API key is missing or its scope is too small.
 * @param {unknown} error
 */
export const isRefused = (error) => error instanceof ApiError && (error.status === 401 || error.status === 403);

/**
 * Return what `load` gave last, the error of its last call if it failed, and a function that loads at once.
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number} seconds From the end of one call to the next.
 * @param {unknown[]} inputs The values that `load` depends on: if one changes, it is called at once.
 * @returns {{value: T | undefined, error: Error | undefined, reload: () => void}}
 */
export function usePolling(load, seconds, inputs) {
  const [found, setFound] = useState(/** @type {{value?: T, error?: Error}} */ ({}));
  const [count, setCount] = useState(0);
  useEffect(() => {
    const stopping = new AbortController();
    poll(load, seconds, stopping.signal, setFound);
    return () => stopping.abort();
  }, [...inputs, seconds, count]);
  const reload = useCallback(() => setCount((before) => before + 1), []);
  return { value: found.value, error: found.error, reload };
}

/**
 * @template T
 * @param {(signal: AbortSignal) => Promise<T>} load
 * @param {number} seconds
 * @param {AbortSignal} signal
 * @param {(change: (before: {value?: T, error?: Error}) => {value?: T, error?: Error}) => void} setFound
 */
async function poll(load, seconds, signal, setFound) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        const value = await load(signal);
        if (!signal.aborted) setFound(() => ({ value }));
      } catch (error) {
        if (!signal.aborted) setFound(({ value }) => ({ value, error: /** @type {Error} */ (error) }));
        if (isRefused(error)) return;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  }
}
