// The page's texts in the language that is chosen.

import { settingStore } from "../storage.js";
import { en } from "./en.js";
import { zh } from "./zh.js";

/** @typedef {keyof typeof en} StringKey */
/** @typedef {"en" | "zh"} Language */

const TABLES = { en, zh };

/** The names of the languages, each in its own words. */
export const LANGUAGES = { en: "English", zh: "中文" };

/** The language that is chosen; at first the browser's, if there are texts in it. */
export const language = settingStore(
  "language",
  /** @type {Language} */ (navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en"),
);

/**
 * Return a text in the language that is chosen, with `{name}` replaced by `values.name`.
 * @param {StringKey} key
 * @param {Record<string, string | number>} [values]
 */
export function t(key, values = {}) {
  return TABLES[language.get()][key].replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/**
 * Return a number as the language writes it.
 * @param {number} value
 * @param {number} [digits] The most digits after the point.
 */
export function formatNumber(value, digits = 0) {
  return new Intl.NumberFormat(language.get(), { maximumFractionDigits: digits, signDisplay: "negative" }).format(value);
}
