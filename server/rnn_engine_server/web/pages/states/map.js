// A map of texts: each becomes the state after it, the states become points in the plane.

import { post } from "../../api.js";
import { Button } from "../../components/button.js";
import { Failure } from "../../components/failure.js";
import { Select, TextField } from "../../components/fields.js";
import { formatShare } from "../../components/format.js";
import { modelName, models } from "../../server.js";
import { settingStore } from "../../storage.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useRef, useState } from "../../vendor/preact.js";
import { EXAMPLE } from "./map_example.js";
import { MapPlot } from "./map_plot.js";
import { nearestAccuracy, planeOf } from "./vectors.js";

const MOST_TEXTS = 500;
const AT_A_TIME = 16;
const NEIGHBOURS = 3;

/** @typedef {{label: string, text: string}} LabelledText */
/** @typedef {LabelledText & {x: number, y: number}} MapPoint */
/** @typedef {{points: MapPoint[], accuracy: number | null}} TextMap */

const lines = settingStore("map-lines", EXAMPLE);

export function MapPart() {
  const text = useStore(lines);
  const meta = useStore(models).find(({ id }) => id === modelName())?.meta;
  const [layer, setLayer] = useState("mean");
  const [done, setDone] = useState(/** @type {number | null} */ (null));
  const [map, setMap] = useState(/** @type {TextMap | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const running = useRef(/** @type {AbortController | null} */ (null));
  const texts = readLines(text);
  const draw = async () => {
    running.current = new AbortController();
    setError(null);
    try {
      setMap(await makeMap(texts, layer, setDone, running.current.signal));
    } catch (failure) {
      if (!running.current.signal.aborted) setError(/** @type {Error} */ (failure));
    } finally {
      setDone(null);
    }
  };
  const layers = ["mean", ...Array.from({ length: meta?.num_layers ?? 0 }, (_, number) => String(number))];
  return html`
    <div>
      <p class="muted lead">${t("states.map_hint")}</p>
      <div class="map">
        <form
          class="stack"
          onSubmit=${(/** @type {Event} */ event) => {
            event.preventDefault();
            draw();
          }}
        >
          <${TextField}
            label=${t("states.map_lines")}
            value=${text}
            rows=${14}
            spellcheck="false"
            error=${texts.length > MOST_TEXTS ? t("states.map_most", { n: MOST_TEXTS }) : undefined}
            onChange=${(/** @type {string} */ next) => lines.set(next)}
          />
          <div class="row">
            <${Select}
              label=${t("states.map_layer")}
              value=${layer}
              options=${layers.map((value) => ({ value, label: value === "mean" ? t("states.map_mean") : value }))}
              onChange=${setLayer}
            />
          </div>
          <div class="row">
            ${
              done === null
                ? html`<${Button} kind="main" type="submit" disabled=${texts.length < 3 || texts.length > MOST_TEXTS}>${t("states.map_draw")}<//>`
                : html`<${Button} icon="stop" onClick=${() => running.current?.abort()}>${t("states.map_stop")}<//>`
            }
            ${text !== EXAMPLE && html`<${Button} kind="quiet" onClick=${() => lines.set(EXAMPLE)}>${t("states.map_example")}<//>`}
            <span class="muted" role="status">
              ${done === null ? t("states.map_count", { n: texts.length }) : t("states.map_done", { n: done, all: texts.length })}
            </span>
          </div>
          ${error && html`<${Failure} error=${error} />`}
        </form>
        <div>
          ${map === null ? html`<p class="empty">${t("states.map_empty")}</p>` : html`<${MapPlot} points=${map.points} />`}
          ${
            map !== null &&
            map.accuracy !== null &&
            html`<p class="muted">${t("states.map_accuracy", { k: NEIGHBOURS, share: formatShare(map.accuracy) })}</p>`
          }
        </div>
      </div>
    </div>
  `;
}

/**
 * Return the texts of lines `label<TAB>text`; a line without a tab has no label.
 * @param {string} text
 * @returns {LabelledText[]}
 */
function readLines(text) {
  return text
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => {
      const [label, ...rest] = line.split("\t");
      return rest.length === 0 ? { label: "", text: label } : { label: label.trim(), text: rest.join("\t") };
    });
}

/**
 * @param {LabelledText[]} texts
 * @param {string} layer
 * @param {(count: number) => void} tell
 * @param {AbortSignal} signal
 * @returns {Promise<TextMap>}
 */
async function makeMap(texts, layer, tell, signal) {
  /** @type {number[][]} */
  const vectors = [];
  tell(0);
  for (let start = 0; start < texts.length; start += AT_A_TIME) {
    const input = texts.slice(start, start + AT_A_TIME).map(({ text }) => text);
    const body = { model: modelName(), input, layer: layer === "mean" ? "mean" : Number(layer) };
    const answer = await post("/v1/embeddings", body, { signal });
    vectors.push(...answer.data.map((/** @type {{embedding: number[]}} */ entry) => entry.embedding));
    tell(vectors.length);
  }
  const plane = planeOf(vectors);
  const labels = texts.map(({ label }) => label);
  return {
    points: texts.map((text, index) => ({ ...text, x: plane[index][0], y: plane[index][1] })),
    accuracy: new Set(labels).size < 2 ? null : nearestAccuracy(vectors, labels, NEIGHBOURS),
  };
}
