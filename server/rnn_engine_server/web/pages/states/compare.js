// Two states side by side: how far apart they are, by layer and head.

import { post } from "../../api.js";
import { Failure } from "../../components/failure.js";
import { Select } from "../../components/fields.js";
import { usePolling } from "../../components/polling.js";
import { modelName } from "../../server.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { Picture } from "./picture.js";
import { listStates } from "./state_calls.js";

const SECONDS = 10;
const EMPTY = "none";

/** @typedef {"differences" | "norms" | "other_norms"} Measure */

/**
 * @typedef {object} ComparedField A field of two states: rows are layers, columns heads, or one for a vector.
 * @property {string} name
 * @property {string} kind
 * @property {number[][]} norms
 * @property {number[][]} other_norms
 * @property {number[][]} differences
 */

/** @param {{rest: string}} props `rest`: the name of the first state. */
export function ComparePart({ rest }) {
  const model = modelName();
  const { value, error } = usePolling((signal) => listStates(signal), SECONDS, [model]);
  const names = value?.data.map(({ name }) => name) ?? [];
  const [chosen, setChosen] = useState({ first: rest, second: "" });
  const first = chosen.first || names[0] || EMPTY;
  const second = chosen.second || names.find((name) => name !== first) || EMPTY;
  const options = [...names, EMPTY].map((name) => ({ value: name, label: name === EMPTY ? t("states.empty") : name }));
  return html`
    <div>
      <p class="muted lead">${t("states.compare_hint")}</p>
      <div class="bar">
        <${Select}
          label=${t("states.first")}
          value=${first}
          options=${options}
          onChange=${(/** @type {string} */ name) => setChosen({ ...chosen, first: name })}
        />
        <${Select}
          label=${t("states.second")}
          value=${second}
          options=${options}
          onChange=${(/** @type {string} */ name) => setChosen({ ...chosen, second: name })}
        />
      </div>
      ${error && html`<${Failure} error=${error} />`}
      ${value && html`<${Comparison} key=${`${model}\n${first}\n${second}`} first=${first} second=${second} />`}
    </div>
  `;
}

/** @param {{first: string, second: string}} props */
function Comparison({ first, second }) {
  const [fields, setFields] = useState(/** @type {ComparedField[] | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [measure, setMeasure] = useState(/** @type {Measure} */ ("differences"));
  useEffect(() => {
    const stopping = new AbortController();
    post("/v1/states/compare", { state: first, other: second, model: modelName() }, { signal: stopping.signal }).then(
      (answer) => setFields(answer.fields),
      (failure) => !stopping.signal.aborted && setError(failure),
    );
    return () => stopping.abort();
  }, []);
  if (error) return html`<${Failure} error=${error} />`;
  if (fields === null) return html`<p class="muted" role="status">${t("states.comparing")}</p>`;
  return html`
    <div>
      <div class="bar">
        <${Select}
          label=${t("states.measure")}
          value=${measure}
          options=${[
            { value: "differences", label: t("states.measure.differences") },
            { value: "norms", label: t("states.measure.norms", { name: nameOf(first) }) },
            { value: "other_norms", label: t("states.measure.norms", { name: nameOf(second) }) },
          ]}
          onChange=${(/** @type {Measure} */ chosen) => setMeasure(chosen)}
        />
        <p class="muted">${t("states.mean_difference", { n: formatNumber(meanOf(fields), 3) })}</p>
      </div>
      <${Picture} fields=${fields} measure=${measure} />
    </div>
  `;
}

/** @param {string} name */
const nameOf = (name) => (name === EMPTY ? t("states.empty") : name);

/** @param {ComparedField[]} fields */
function meanOf(fields) {
  const all = fields.flatMap(({ differences }) => differences.flat());
  return all.reduce((sum, value) => sum + value, 0) / all.length;
}
