// Bytes, times, spans of time and shares as the chosen language writes them.

import { formatNumber, language } from "../strings/index.js";

const BYTE_UNITS = /** @type {const} */ (["byte", "kilobyte", "megabyte", "gigabyte", "terabyte"]);
const TIME_UNITS = /** @type {const} */ ([
  ["day", 86400],
  ["hour", 3600],
  ["minute", 60],
]);

/**
 * Return a number of bytes with a unit, such as "12.5 MB".
 * @param {number} bytes
 */
export function formatBytes(bytes) {
  let power = 0;
  let value = bytes;
  while (value >= 1000 && power < BYTE_UNITS.length - 1) {
    value /= 1000;
    power++;
  }
  return withUnit(value, BYTE_UNITS[power], power === 0 || value >= 100 ? 0 : 1);
}

/**
 * Return a span of time in its greatest unit, such as "3 min".
 * @param {number} seconds
 */
export function formatSpan(seconds) {
  const [unit, size] = TIME_UNITS.find(([, least]) => seconds >= least) ?? /** @type {const} */ (["second", 1]);
  return withUnit(Math.floor(seconds / size), unit, 0);
}

/**
 * Return a day and a time of day.
 * @param {number} time Unix seconds.
 */
export const formatTime = (time) =>
  new Intl.DateTimeFormat(language.get(), { dateStyle: "medium", timeStyle: "short" }).format(1000 * time);

/**
 * Return a share of 1 in percent.
 * @param {number} share
 */
export const formatShare = (share) => `${formatNumber(100 * share, share > 0 && share < 0.1 ? 1 : 0)} %`;

/** @param {number} value @param {string} unit @param {number} digits */
function withUnit(value, unit, digits) {
  return new Intl.NumberFormat(language.get(), {
    style: "unit",
    unit,
    unitDisplay: "short",
    maximumFractionDigits: digits,
  }).format(value);
}
