// The known state of the server: its connection, and its models.

import { ApiError, address, get } from "./api.js";
import { createStore } from "./store.js";

/** @typedef {"connecting" | "ok" | "busy" | "failed" | "locked" | "unreachable"} Connection */
/** @typedef {{id: string, meta: Record<string, any>, parent?: string}} Model `parent`: the model that was tuned. */

const LOOK_MS = 5000;

/** The state of the connection: if the server answers, and if it takes requests. */
export const connection = createStore(/** @type {Connection} */ ("connecting"));

/** The models of the server, the default one first. */
export const models = createStore(/** @type {Model[]} */ ([]));

/** The name of the model that the person chose; empty = the default one. */
export const chosenModel = createStore("");

/** The names of the states that requests may start from. */
export const stateNames = createStore(/** @type {string[]} */ ([]));

/** The names of those that are kept until somebody deletes them: the operator's and other persistent ones. */
export const persistentNames = createStore(/** @type {string[]} */ ([]));

/** Return the name of the model for calls; empty while none is known. */
export function modelName() {
  return chosenModel.get() || models.get()[0]?.id || "";
}

/** Return whether the chosen model makes vectors of texts and writes none. */
export function isForVectors() {
  return Boolean(models.get().find(({ id }) => id === modelName())?.meta.embedding);
}

/** Load the models anew. */
export async function loadModels() {
  models.set((await get("/v1/models", { quiet: true })).data);
}

/** Load the names of the states that requests may start from. */
export async function loadStates() {
  const { data } = await get(`/v1/states?model=${encodeURIComponent(modelName())}`);
  const states = /** @type {{name: string, persistent: boolean}[]} */ (data);
  stateNames.set(states.map(({ name }) => name));
  persistentNames.set(states.filter(({ persistent }) => persistent).map(({ name }) => name));
}

/** Check every few seconds if the server answers, while the page is visible. */
export async function watchServer() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

async function look() {
  try {
    const health = await (await fetch(address("/health"))).json();
    const known = models.get().length > 0 && connection.get() !== "unreachable"; // it may be another server now
    connection.set(connectionOf(health.status));
    if (!known) await loadModels();
  } catch (error) {
    connection.set(error instanceof ApiError && error.status === 401 ? "locked" : "unreachable");
  }
}

/** @param {string} status @returns {Connection} */
function connectionOf(status) {
  if (status === "ok") return "ok";
  return status === "failed" || status === "stalled" ? "failed" : "busy";
}
