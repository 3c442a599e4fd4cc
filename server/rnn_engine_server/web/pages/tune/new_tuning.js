// The examples of a new tuning, typed or from a file, what is odd in them, and its settings.

import { Button } from "../../components/button.js";
import { FileField } from "../../components/file_field.js";
import { notifyError } from "../../components/notices.js";
import { go } from "../../router.js";
import { chosenModel, models } from "../../server.js";
import { useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useMemo, useState } from "../../vendor/preact.js";
import { AddExample } from "./add_example.js";
import { baseModel, beginTuning } from "./calls.js";
import { FEWEST, readExamples } from "./examples.js";
import { SAMPLE } from "./samples.js";
import { change, draft } from "./state.js";

const SHOWN = 100;
const RANKS = [4, 8, 16, 32, 64];

/** Ways to train a LoRA, as hyperparameters of a job. @type {Record<Way, Record<string, string | boolean>>} */
const WAYS = { pairs: {}, pissa: { init: "pissa" }, state: { train_state: true }, vectors: { train_vectors: true } };

/** @typedef {import("./examples.js").Example} Example */
/** @typedef {import("./state.js").Way} Way */

export function NewTuning() {
  const { examples: text, suffix, epochs, batch, rate, rank, way = "pairs" } = useStore(draft);
  useStore(models);
  useStore(chosenModel);
  const examples = useMemo(() => readExamples(text), [text]);
  const [busy, setBusy] = useState(false);
  const wrong = examples.filter(({ isWrong }) => isWrong).length;
  const begin = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      const numbers = { n_epochs: epochs, batch_size: batch, learning_rate_multiplier: rate, rank };
      const given = Object.entries(numbers).filter(([, value]) => value);
      const settings = Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
      const { id } = await beginTuning(text, suffix, { ...settings, ...(rank && WAYS[way]) });
      go("tune", id);
    } catch (error) {
      notifyError(error);
      setBusy(false);
    }
  };
  return html`
    <div class="stack">
      <${FileField}
        label=${t("tune.examples")}
        value=${text}
        placeholder=${PLACEHOLDER}
        accept=".jsonl,.ndjson,.txt"
        button=${t("tune.file")}
        hint=${t("tune.file.hint")}
        onChange=${(/** @type {string} */ examples) => change({ examples })}
        onFiles=${(/** @type {string[]} */ added) => change({ examples: joined(text, ...added) })}
      />
      <${AddExample} onAdd=${(/** @type {string} */ line) => change({ examples: joined(text, line) })} />
      ${examples.length > 0 && html`<${Examples} examples=${examples} />`}
      <form class="stack" onSubmit=${begin}>
        <${Settings} />
        <div class="row">
          <${Button} kind="main" type="submit" disabled=${busy || wrong > 0 || examples.length < FEWEST}>
            ${t("tune.begin", { model: baseModel() })}
          <//>
          ${text === "" && html`<${Button} onClick=${() => change({ examples: SAMPLE, suffix: suffix || "pirate" })}>${t("tune.sample")}<//>`}
          <span class="muted small">
            ${t("tune.count", { count: formatNumber(examples.length), fewest: FEWEST })}
            ${wrong > 0 && ` ${t("tune.wrong", { count: formatNumber(wrong) })}`}
          </span>
        </div>
      </form>
    </div>
  `;
}

/** @param {string[]} texts */
const joined = (...texts) => texts.map((text) => text.replace(/\n+$/, "")).filter(Boolean).join("\n");

const PLACEHOLDER = '{"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}';

function Settings() {
  const { suffix, epochs, batch, rate, rank = "", way } = useStore(draft);
  /** @param {"suffix" | "epochs" | "batch" | "rate"} field @param {string} value @param {Record<string, any>} attributes */
  const input = (field, value, attributes) => html`
    <label class="field grow">
      <span>${t(`tune.${field}`)}</span>
      <input value=${value} onInput=${(/** @type {any} */ event) => change({ [field]: event.target.value })} ...${attributes} />
    </label>
  `;
  const number = { type: "number", placeholder: t("tune.auto") };
  return html`
    <div class="row is-top">
      <label class="field grow">
        <span>${t("tune.what")}</span>
        <select value=${rank} onChange=${(/** @type {any} */ event) => change({ rank: event.target.value })}>
          <option value="">${t("tune.what.state")}</option>
          ${RANKS.map((each) => html`<option key=${each} value=${each}>${t("tune.what.lora", { rank: formatNumber(each) })}</option>`)}
        </select>
      </label>
      ${
        rank &&
        html`
          <label class="field grow">
            <span>${t("tune.way")}</span>
            <select value=${way} onChange=${(/** @type {any} */ event) => change({ way: event.target.value })}>
              ${/** @type {Way[]} */ (Object.keys(WAYS)).map((each) => html`<option key=${each} value=${each}>${t(`tune.way.${each}`)}</option>`)}
            </select>
          </label>
        `
      }
      ${input("suffix", suffix, { pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}", placeholder: "pirate", title: t("tune.suffix.hint") })}
      ${input("epochs", epochs, { ...number, min: 1 })}
      ${input("batch", batch, { ...number, min: 1 })}
      ${input("rate", rate, { ...number, min: 0, step: "any" })}
    </div>
  `;
}

/** @param {{examples: Example[]}} props The odd ones are shown first. */
function Examples({ examples }) {
  const shown = [...examples.filter(({ odd }) => odd !== ""), ...examples.filter(({ odd }) => odd === "")].slice(0, SHOWN);
  return html`
    <div class="table-box tune-examples" tabindex="0" role="group" aria-label=${t("tune.examples.read")}>
      <table class="list">
        <thead>
          <tr>
            <th scope="col" class="number">${t("tune.line")}</th>
            <th scope="col">${t("tune.question")}</th>
            <th scope="col">${t("tune.answer")}</th>
          </tr>
        </thead>
        <tbody>
          ${shown.map(
            ({ line, question, answer, odd, isWrong }) => html`
              <tr key=${line}>
                <td class="number">${formatNumber(line)}</td>
                <td>${question}</td>
                <td>${odd && html`<span class=${isWrong ? "tune-odd is-wrong" : "tune-odd"}>${odd}</span>`} ${answer}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
    ${examples.length > SHOWN && html`<p class="muted small">${t("tune.first", { count: formatNumber(SHOWN) })}</p>`}
  `;
}
