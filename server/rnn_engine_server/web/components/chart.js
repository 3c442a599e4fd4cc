// A small chart of lines, with the latest values as text.

import { createStore, useStore } from "../store.js";
import { formatNumber, t } from "../strings/index.js";
import { html, useEffect, useRef } from "../vendor/preact.js";
import uPlot from "../vendor/uplot.js";

const HEIGHT = 140;

/** The distances between labels of the x axis, whose places are whole numbers: 1, 2, 5, 10, 20, ... */
const STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));

/** @typedef {(number | null | undefined)[]} Values One for each place on the x axis; null or undefined: none. */

/**
 * @typedef {object} Line
 * @property {string} name
 * @property {string} colour The property with its colour.
 * @property {Values} values
 * @property {boolean} [isSparse] Places without a value are no gaps in the line; each value has a point.
 */

/** The number of times that the colours of the page have changed. */
const colours = createStore(0);
const changed = () => colours.set(colours.get() + 1);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
new MutationObserver(changed).observe(document.documentElement, { attributeFilter: ["data-theme"] });

/**
 * @param {{
 *   title: string, unit: string, x: number[], range: [number, number], xText: (x: number) => string, lines: Line[],
 *   digits?: number,
 * }} props `range`: the ends of the x axis. `digits`: how many a value less than 10 has after the point.
 */
export function Chart({ title, unit, x, range, xText, lines, digits = 1 }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {uPlot | null} */ (null));
  const ends = useRef(range);
  ends.current = range;
  const scheme = useStore(colours);
  const data = /** @type {uPlot.AlignedData} */ ([x, ...lines.map(({ values }) => values)]);
  useEffect(() => {
    const element = /** @type {HTMLElement} */ (place.current);
    const made = new uPlot(optionsOf(lines, () => ends.current, xText, digits, element), data, element);
    plot.current = made;
    const resizing = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: HEIGHT }));
    resizing.observe(element);
    return () => {
      resizing.disconnect();
      made.destroy();
    };
  }, [scheme]);
  useEffect(() => plot.current?.setData(data), [x, ...lines.map(({ values }) => values)]);
  const texts = lines.map(({ values }) => valueText(values.findLast((value) => value !== null && value !== undefined), digits));
  const values = lines.map(({ name }, place) => `${name} ${texts[place]}`).join(", ");
  return html`
    <section class="card" aria-label=${title}>
      <div class="card-head">
        <h2>${title}</h2>
        <span class="muted">${unit}</span>
      </div>
      <ul class="legend">
        ${lines.map(
          ({ name, colour }, place) => html`
            <li key=${name}><i style=${{ background: `var(${colour})` }}></i>${name} <b class="number">${texts[place]}</b></li>
          `,
        )}
      </ul>
      <div class="plot" role="img" aria-label=${t("chart.label", { title, values })} ref=${place}></div>
    </section>
  `;
}

/** @param {number | null | undefined} value @param {number} digits */
const valueText = (value, digits) =>
  value === null || value === undefined ? "–" : formatNumber(value, value < 10 ? digits : 0);

/**
 * @param {Line[]} lines
 * @param {() => [number, number]} range
 * @param {(x: number) => string} xText
 * @param {number} digits
 * @param {HTMLElement} element
 * @returns {uPlot.Options}
 */
function optionsOf(lines, range, xText, digits, element) {
  const [muted, line] = ["--muted", "--line"].map((name) => colourOf(name, element));
  const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width: element.clientWidth,
    height: HEIGHT,
    padding: [8, 16, 0, 0],
    cursor: { show: false },
    legend: { show: false },
    scales: { x: { time: false, range }, y: { range: (_, __, most) => [0, Math.max(1.1 * most, 10 ** (1 - digits))] } },
    axes: [
      { ...axis, size: 24, incrs: STEPS, values: (_, places) => places.map(xText) },
      { ...axis, size: 44, values: (_, numbers) => numbers.map((number) => formatNumber(number, digits)) },
    ],
    series: [
      {},
      ...lines.map(({ name, colour, isSparse = false }) => ({
        label: name,
        stroke: colourOf(colour, element),
        width: 2,
        points: { show: isSparse, size: 6 },
        spanGaps: isSparse,
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
