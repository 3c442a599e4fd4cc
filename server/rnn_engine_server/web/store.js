// Values shared by several components. A component that uses a store is drawn again when its value changes.

import { useLayoutEffect, useReducer } from "./vendor/preact.js";

/**
 * @template T
 * @typedef {object} Store
 * @property {() => T} get
 * @property {(value: T) => void} set
 * @property {(listener: () => void) => () => void} subscribe Returns the function that ends the subscription.
 */

/**
 * Return a store that holds `value`.
 * @template T
 * @param {T} value
 * @returns {Store<T>}
 */
export function createStore(value) {
  /** @type {Set<() => void>} */
  const listeners = new Set();
  return {
    get: () => value,
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
  };
}

/**
 * Return a store's value, and draw the component again when it changes.
 * @template T
 * @param {Store<T>} store
 * @returns {T}
 */
export function useStore(store) {
  const [, redraw] = useReducer((/** @type {number} */ count) => count + 1, 0);
  const value = store.get();
  useLayoutEffect(() => {
    const change = () => redraw(undefined);
    if (!Object.is(store.get(), value)) change();
    return store.subscribe(change);
  }, [store]);
  return value;
}
