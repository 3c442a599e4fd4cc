// The fields of a request that say how tokens are drawn, and presets of them.

import { settingStore } from "../storage.js";

/** @typedef {Record<string, number | boolean>} Sampling */

/**
 * @typedef {object} SamplingField
 * @property {string} name As the request has it.
 * @property {number} fallback The server's default.
 * @property {number} min
 * @property {number} max
 * @property {number} step
 */

/** @param {string} name @param {number} fallback @param {number} min @param {number} max @param {number} step */
const field = (name, fallback, min, max, step) => ({ name, fallback, min, max, step });

/** What most people change. @type {SamplingField[]} */
export const MAIN_FIELDS = [
  field("temperature", 1, 0, 2, 0.05),
  field("top_p", 0.5, 0, 1, 0.01),
  field("top_k", 128, 0, 500, 1),
  field("presence_penalty", 0, 0, 2, 0.05),
  field("frequency_penalty", 0, 0, 2, 0.05),
  field("penalty_decay", 0.99654026, 0.9, 1, 0.001),
  field("max_tokens", 256, 1, 4096, 1),
];

/** The rest of the samplers. @type {SamplingField[]} */
export const MORE_FIELDS = [
  field("min_p", 0, 0, 1, 0.01),
  field("typical_p", 1, 0, 1, 0.01),
  field("top_n_sigma", -1, -1, 5, 0.1),
  field("repeat_penalty", 1, 0.5, 2, 0.01),
  field("repeat_last_n", 64, -1, 512, 1),
  field("dry_multiplier", 0, 0, 2, 0.05),
  field("dry_base", 1.75, 1, 4, 0.05),
  field("dry_allowed_length", 2, 0, 20, 1),
  field("xtc_probability", 0, 0, 1, 0.01),
  field("xtc_threshold", 0.1, 0, 0.5, 0.01),
  field("dynatemp_range", 0, 0, 2, 0.05),
  field("mirostat", 0, 0, 2, 1),
  field("mirostat_tau", 5, 0, 10, 0.1),
  field("mirostat_eta", 0.1, 0, 1, 0.01),
];

/** Presets that are always there; their names are texts `preset.NAME`. */
export const PRESETS = /** @type {const} */ ({
  standard: {},
  exact: { temperature: 0 },
  careful: { temperature: 1, top_p: 0.3, presence_penalty: 0.4, frequency_penalty: 0.4 },
  lively: { temperature: 1.2, top_p: 0.8, presence_penalty: 0.5, frequency_penalty: 0.5 },
});

/** Presets that the person has saved, by name. */
export const ownPresets = settingStore("presets", /** @type {Record<string, Sampling>} */ ({}));

/** The fields that belong to a preset: not how long an answer may be, nor its seed. @param {Sampling} sampling */
export function presetPart(sampling) {
  const { max_tokens: _length, seed: _seed, enable_thinking: _thinks, ...rest } = sampling;
  return /** @type {Sampling} */ (rest);
}

/** @param {Sampling} sampling @param {Sampling} preset @returns {Sampling} */
export function withPreset(sampling, preset) {
  const kept = Object.entries(sampling).filter(([name]) => !(name in presetPart(sampling)));
  return { ...preset, ...Object.fromEntries(kept) };
}

/** @param {Sampling} a @param {Sampling} b */
export function sameSampling(a, b) {
  const names = new Set([...Object.keys(a), ...Object.keys(b)]);
  return [...names].every((name) => a[name] === b[name]);
}
