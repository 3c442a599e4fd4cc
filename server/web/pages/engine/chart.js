// A small chart of the last two minutes, with the latest values as text.

import { createStore, useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useRef } from "../../vendor/preact.js";
import uPlot from "../../vendor/uplot.js";
import { KEPT_SECONDS } from "./live.js";

const HEIGHT = 140;

/** @typedef {import("./live.js").Sample} Sample */
/** @typedef {[keyof Sample, string, string]} Line Field, name, and the property with its colour. */

/** The number of times that the colours of the page have changed. */
const colours = createStore(0);
const changed = () => colours.set(colours.get() + 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/** @param {{title: string, unit: string, samples: Sample[], lines: Line[]}} props */
export function Chart({ title, unit, samples, lines }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const scheme = useStore(colours);
  const last = samples.at(-1);
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (place.current);
    const made = new uPlot(optionsOf(lines, element), dataOf(samples, lines), element);
    plot.current = made;
    const resizing = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    resizing.observe(element);
    return () => {
      resizing.disconnect();
      made.destroy();
    };
  }, [scheme]);
  useEffect(() => plot.current?.setData(dataOf(samples, lines)), [samples]);
  const values = lines.map(([field, name]) => `${name} ${valueText(last?.[field])}`).join(", ");
  return html`
    <section class="card" aria-label=${title}>
      <div class="card-head">
        <h2>${title}</h2>
        <span class="muted">${unit}</span>
      </div>
      <ul class="legend">
        ${lines.map(
          ([field, name, colour]) => html`
            <li key=${field}><i style=${{ background: `var(${colour})` }}></i>${name} <b class="number">${valueText(last?.[field])}</b></li>
          `,
        )}
      </ul>
      <div class="plot" role="img" aria-label=${t("engine.chart", { title, values })} ref=${place}></div>
    </section>
  `;
}

/** @param {number | null | undefined} value */
const valueText = (value) => (value === null || value === undefined ? "–" : formatNumber(value, value < 10 ? 1 : 0));

/** @param {Sample[]} samples @param {Line[]} lines @returns {uPlot.AlignedData} */
function dataOf(samples, lines) {
  const last = samples.at(-1)?.time ?? 0;
  const times = samples.map(({ time }) => time - last);
  return [times, ...lines.map(([field]) => samples.map((sample) => sample[field]))];
}

/** @param {Line[]} lines @param {HTMLElement} element @returns {uPlot.Options} */
function optionsOf(lines, element) {
  const [muted, line] = ["--muted", "--line"].map((name) => colourOf(name, element));
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: { x: { time: false, range: [-KEPT_SECONDS, 0] }, y: { range: (_, __, most) => [0, Math.max(1.1 * most, 1)] } },
    axes: [
      { ...axis, size: 24, values: (_, seconds) => seconds.map((second) => (second === 0 ? "" : `${second} s`)) },
      { ...axis, size: 44, values: (_, numbers) => numbers.map((number) => formatNumber(number, 1)) },
    ],
    series: [
      {},
      ...lines.map(([, label, colour]) => ({
        label,
        stroke: colourOf(colour, element),
        width: 2,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

/**
 * Return a colour of the page as a canvas takes it.
 * @param {string} name
 * @param {HTMLElement} element
 */
function colourOf(name, element) {
  element.style.color = `var(${name})`;
  const colour = getComputedStyle(element).color;
  element.style.color = "";
  return colour;
}
