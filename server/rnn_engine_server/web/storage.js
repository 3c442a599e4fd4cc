// The browser's storage: small settings in localStorage, conversations and other records in IndexedDB.

import { createStore } from "./store.js";

const PREFIX = "rnn-engine.";
const DATABASE = "rnn-engine";
const VERSION = 2;
const TABLES = ["conversations", "drafts"];

/**
 * Return a setting, or `fallback` if there is none or the storage is closed.
 * @template T
 * @param {string} name
 * @param {T} fallback
 * @returns {T}
 */
export function readSetting(name, fallback) {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : JSON.parse(text);
  } catch {
    return fallback;
  }
}

/**
 * Keep a setting; undefined removes it. Does nothing if the storage is closed or full.
 * @param {string} name
 * @param {unknown} value
 */
export function writeSetting(name, value) {
  try {
    if (value === undefined) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // the setting holds until the page is closed
  }
}

/**
 * Return a store whose value is kept as a setting.
 * @template T
 * @param {string} name
 * @param {T} fallback
 * @returns {import("./store.js").Store<T>}
 */
export function settingStore(name, fallback) {
  const store = createStore(readSetting(name, fallback));
  store.subscribe(() => writeSetting(name, store.get()));
  return store;
}

/** @type {Promise<IDBDatabase> | undefined} */
let opened;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, VERSION);
    request.onupgradeneeded = () => {
      for (const table of TABLES) {
        if (!request.result.objectStoreNames.contains(table)) request.result.createObjectStore(table, { keyPath: "id" });
      }
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // a newer page in another window waits for it
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("a page in another window keeps an older database open"));
  });
  return opened;
}

/**
 * @template T
 * @param {string} table
 * @param {IDBTransactionMode} mode
 * @param {(store: IDBObjectStore) => IDBRequest<T>} ask
 * @returns {Promise<T>}
 */
async function run(table, mode, ask) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(table, mode);
    const request = ask(transaction.objectStore(table));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error ?? request.error);
  });
}

/**
 * Return all records of a table.
 * @param {string} table
 * @returns {Promise<any[]>}
 */
export const readRecords = (table) => run(table, "readonly", (store) => store.getAll());

/**
 * Keep a record, which has an `id`, in place of the one with the same id.
 * @param {string} table
 * @param {{id: string, [field: string]: unknown}} record
 */
export const writeRecord = (table, record) => run(table, "readwrite", (store) => store.put(record));

/**
 * Delete a record.
 * @param {string} table
 * @param {string} id
 */
export const removeRecord = (table, id) => run(table, "readwrite", (store) => store.delete(id));
