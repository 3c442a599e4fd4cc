// A chart of the last two minutes.

import { Chart } from "../../components/chart.js";
import { html, useMemo } from "../../vendor/preact.js";
import { KEPT_SECONDS } from "./live.js";

/** @typedef {import("./live.js").Sample} Sample */
/** @typedef {[keyof Sample, string, string]} Line Field, name, and the property with its colour. */

/** @param {{title: string, unit: string, samples: Sample[], lines: Line[]}} props */
export function TimeChart({ title, unit, samples, lines }) {
  const [x, ...values] = useMemo(() => {
    const last = samples.at(-1)?.time ?? 0;
    const fields = lines.map(([field]) => samples.map((sample) => sample[field]));
    return [samples.map(({ time }) => time - last), ...fields];
  }, [samples]);
  return html`
    <${Chart}
      title=${title}
      unit=${unit}
      x=${x}
      range=${[-KEPT_SECONDS, 0]}
      xText=${(/** @type {number} */ second) => (second === 0 ? "" : `${second} s`)}
      lines=${lines.map(([, name, colour], place) => ({ name, colour, values: values[place] }))}
    />
  `;
}
