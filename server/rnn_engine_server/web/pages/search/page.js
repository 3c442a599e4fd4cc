// The page Search orders texts by how well they answer a query, and shows how many tokens each query ran.

import { Button } from "../../components/button.js";
import { FileField } from "../../components/file_field.js";
import { NoSuchPage } from "../../components/no_such_page.js";
import { notifyError } from "../../components/notices.js";
import { useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { ask, keepTexts } from "./collection.js";
import { exampleForModel } from "./examples.js";
import { Hits } from "./hits.js";
import { change, draft, linesOf, restored } from "./state.js";

const MOST_TEXTS = 200;
const SHOWN_RUNS = 20;

/** @typedef {import("./collection.js").Found} Found */
/** @typedef {import("./collection.js").Tokens} Tokens */
/** @typedef {{what: string, tokens: Tokens, ms: number}} Run */

/** @param {{rest: string}} props */
export function Page({ rest }) {
  const [ready, setReady] = useState(false);
  useEffect(() => void restored.then(() => setReady(true)), []);
  if (rest !== "") return html`<${NoSuchPage} address=${`search/${rest}`} />`;
  return html`
    <div class="page search">
      <h1 class="unseen">${t("nav.search")}</h1>
      ${ready && html`<${SearchPart} />`}
    </div>
  `;
}

function SearchPart() {
  const { texts, query, collection } = useStore(draft);
  const [found, setFound] = useState(/** @type {Found | null} */ (null));
  const [runs, setRuns] = useState(/** @type {Run[]} */ ([]));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const lines = linesOf(texts);
  const isReady = lines.length > 0 && lines.length <= MOST_TEXTS && query.trim() !== "";
  /** @param {string} what @param {Tokens} tokens @param {number} ms */
  const note = (what, tokens, ms) => setRuns((before) => [{ what, tokens, ms }, ...before].slice(0, SHOWN_RUNS));
  const search = async () => {
    const stopping = new AbortController();
    setRunning(stopping);
    try {
      const begun = performance.now();
      const { added, tokens } = await keepTexts(collection, lines, stopping.signal);
      if (added > 0) note(t("search.read", { count: formatNumber(added) }), tokens, performance.now() - begun);
      const answer = await ask(collection, query, lines.length, stopping.signal);
      setFound(answer);
      note(query, answer.tokens, answer.searchMs + answer.rerankMs);
    } catch (error) {
      notifyError(error);
    } finally {
      setRunning((before) => (before === stopping ? null : before));
    }
  };
  useEffect(() => () => setRunning((before) => (before?.abort(), null)), []);
  return html`
    <form
      class="stack"
      onSubmit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        if (isReady && running === null) search();
      }}
    >
      <${FileField}
        label=${t("search.texts")}
        value=${texts}
        placeholder=${t("search.texts.placeholder")}
        accept=".txt,.md,.csv,text/*"
        button=${t("search.file")}
        hint=${t("search.file.hint")}
        onChange=${(/** @type {string} */ text) => change({ texts: text })}
        onFiles=${(/** @type {string[]} */ added) => change({ texts: [texts, ...added].filter((text) => text !== "").join("\n") })}
      />
      <label class="field">
        <span>${t("search.query")}</span>
        <input value=${query} onInput=${(/** @type {any} */ event) => change({ query: event.target.value })} />
      </label>
      <div class="row">
        ${
          running
            ? html`<${Button} kind="main" icon="stop" onClick=${() => running.abort()}>${t("search.stop")}<//>`
            : html`<${Button} kind="main" icon="search" type="submit" disabled=${!isReady}>${t("search.run")}<//>`
        }
        ${texts === "" && html`<${Button} onClick=${() => change(exampleForModel())}>${t("search.example")}<//>`}
        <span class="muted small">
          ${lines.length > MOST_TEXTS ? t("search.tooMany", { most: MOST_TEXTS, count: lines.length }) : t("search.count", { count: lines.length })}
        </span>
      </div>
    </form>
    <div class="stack" aria-live="polite" aria-busy=${running !== null}>
      ${found && html`<${Hits} hits=${found.hits} /><p class="muted small">${METHODS[found.method ?? "none"]()}</p>`}
      ${runs.length > 0 && html`<${Runs} runs=${runs} />`}
    </div>
  `;
}

/** @type {Record<string, () => string>} */
const METHODS = {
  reranker: () => t("search.method.reranker"),
  yes_no: () => t("search.method.yes_no"),
  none: () => t("search.method.none"),
};

/** @param {{runs: Run[]}} props */
function Runs({ runs }) {
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${t("search.runs")}>
      <table class="list">
        <caption class="muted small">${t("search.runs")}</caption>
        <thead>
          <tr>
            <th scope="col">${t("search.what")}</th>
            <th scope="col" class="number">${t("search.tokensRun")}</th>
            <th scope="col" class="number">${t("search.tokensKept")}</th>
            <th scope="col" class="number">${t("search.seconds")}</th>
          </tr>
        </thead>
        <tbody>
          ${runs.map(
            ({ what, tokens, ms }, place) => html`
              <tr key=${runs.length - place}>
                <td>${what}</td>
                <td class="number">${formatNumber(tokens.run)}</td>
                <td class="number">${formatNumber(tokens.cached)}</td>
                <td class="number">${formatNumber(ms / 1000, 2)}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
