// One question: its text, its choices, and how likely the model takes each of them to be.

import { Button, IconButton } from "../../components/button.js";
import { TextField } from "../../components/fields.js";
import { notifyError } from "../../components/notices.js";
import { chosenModel } from "../../server.js";
import { useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { Bars } from "./bars.js";
import { EXAMPLE } from "./examples.js";
import { scoreChoices } from "./scoring.js";
import { change, draft } from "./state.js";

/** @typedef {Awaited<ReturnType<typeof scoreChoices>> & {choices: string[], figure: import("./scoring.js").Figure}} Result */

export function QuestionPart() {
  const { question, choices, settings } = useStore(draft);
  const model = useStore(chosenModel);
  const [result, setResult] = useState(/** @type {Result | null} */ (null));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const given = choices.filter((choice) => choice.trim() !== "");
  const run = async () => {
    const stopping = new AbortController();
    setRunning((before) => (before?.abort(), stopping));
    try {
      const found = await scoreChoices(question, given, settings, stopping.signal);
      setResult({ ...found, choices: given, figure: settings.figure });
    } catch (error) {
      notifyError(error);
    } finally {
      setRunning((before) => (before === stopping ? null : before));
    }
  };
  useEffect(() => () => setRunning((before) => (before?.abort(), null)), []);
  useAgain([settings, model], () => result !== null && given.length > 0 && run());
  return html`
    <form
      class="stack"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (given.length > 0 && running === null) run();
      }}
    >
      <${TextField}
        label=${t("score.question")}
        value=${question}
        rows=${2}
        onChange=${(/** @type {string} */ text) => change({ question: text })}
      />
      <${Choices} choices=${choices} />
      <div class="row">
        ${
          running
            ? html`<${Button} kind="main" icon="stop" onClick=${() => running.abort()}>${t("score.stop")}<//>`
            : html`<${Button} kind="main" icon="score" type="submit" disabled=${given.length === 0}>${t("score.run")}<//>`
        }
        ${question === "" && html`<${Button} onClick=${() => change(EXAMPLE)}>${t("score.example")}<//>`}
        ${given.length === 0 && html`<span class="muted small">${t("score.needsChoice")}</span>`}
      </div>
    </form>
    <div aria-live="polite" aria-busy=${running !== null}>
      ${
        result &&
        html`
          <${Bars} choices=${result.choices} scores=${result.scores} figure=${result.figure} />
          <p class="muted small">
            ${t("score.reused", { reused: formatNumber(result.reused), all: formatNumber(result.promptTokens) })}
          </p>
        `
      }
    </div>
  `;
}

/**
 * Call `again` a moment after one of `inputs` changes. The delay lets a person finish typing.
 * @param {unknown[]} inputs
 * @param {() => unknown} again
 */
function useAgain(inputs, again) {
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return undefined;
    }
    const timer = setTimeout(again, 300);
    return () => clearTimeout(timer);
  }, inputs);
}

/** @param {{choices: string[]}} props */
function Choices({ choices }) {
  const list = useRef(/** @type {HTMLElement | null} */ (null));
  /** @param {number} place */
  const focus = (place) => {
    requestAnimationFrame(() => list.current?.querySelectorAll("input")[place]?.focus());
  };
  /** @param {number} place @param {string} text */
  const set = (place, text) => change({ choices: choices.map((choice, index) => (index === place ? text : choice)) });
  /** @param {number} place @param {string[]} added */
  const insert = (place, added) => {
    change({ choices: [...choices.slice(0, place), ...added, ...choices.slice(place)] });
    focus(place + added.length - 1);
  };
  /** @param {number} place */
  const drop = (place) => {
    change({ choices: choices.length > 1 ? choices.filter((_, index) => index !== place) : [""] });
    focus(Math.min(place, choices.length - 2));
  };
  /** @param {ClipboardEvent} event @param {number} place */
  const paste = (event, place) => {
    const lines = (event.clipboardData?.getData("text") ?? "").split(/\r?\n/).filter((line) => line.trim() !== "");
    if (lines.length < 2) return;
    event.preventDefault();
    const before = choices.slice(0, place);
    const after = choices.slice(choices[place] === "" ? place + 1 : place);
    change({ choices: [...before, ...lines, ...after.filter((choice) => choice !== "")] });
  };
  return html`
    <fieldset class="plain stack is-tight" ref=${list}>
      <legend class="muted small">${t("score.choices")}</legend>
      ${choices.map(
        (choice, place) => html`
          <div class="row is-tight" key=${place}>
            <input
              class="grow"
              aria-label=${t("score.choice", { number: place + 1 })}
              value=${choice}
              onInput=${(/** @type {any} */ event) => set(place, event.target.value)}
              onPaste=${(/** @type {ClipboardEvent} */ event) => paste(event, place)}
              onKeyDown=${(/** @type {KeyboardEvent} */ event) => {
                if (event.key === "Backspace" && choice === "" && choices.length > 1) {
                  event.preventDefault();
                  drop(place);
                }
              }}
            />
            <${IconButton} icon="close" label=${t("score.drop", { number: place + 1 })} onClick=${() => drop(place)} />
          </div>
        `,
      )}
      <div class="row">
        <${Button} kind="quiet" icon="plus" onClick=${() => insert(choices.length, [""])}>${t("score.add")}<//>
        <span class="muted small">${t("score.pasteHint")}</span>
      </div>
    </fieldset>
  `;
}
