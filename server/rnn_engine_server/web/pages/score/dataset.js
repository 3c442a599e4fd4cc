// A table of questions, pasted or dropped: how many of them the model answers right.

import { Button } from "../../components/button.js";
import { FileField } from "../../components/file_field.js";
import { notifyError } from "../../components/notices.js";
import { chosenModel } from "../../server.js";
import { useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useEffect, useMemo, useReducer, useRef, useState } from "../../vendor/preact.js";
import { parseTable, TableError } from "./csv.js";
import { TABLE } from "./examples.js";
import { itemsOf } from "./items.js";
import { Outcomes } from "./outcomes.js";
import { runItems } from "./run.js";
import { change, draft } from "./state.js";

/** @typedef {import("./run.js").Outcome} Outcome */

const SHOWN_ERRORS = 20;

export function DataSetPart() {
  const { table, settings } = useStore(draft);
  const model = useStore(chosenModel);
  const { items, wrong } = useMemo(() => read(table), [table]);
  const outcomes = useRef(/** @type {(Outcome | undefined)[]} */ ([]));
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  const [, redraw] = useReducer((/** @type {number} */ count) => count + 1, 0);
  useEffect(() => {
    outcomes.current = [];
    redraw(undefined);
    return () => setRunning((before) => (before?.abort(), null));
  }, [items, settings, model]);
  const done = outcomes.current.filter((outcome) => outcome !== undefined).length;
  const run = async () => {
    const stopping = new AbortController();
    if (done === items.length) outcomes.current = [];
    setRunning(stopping);
    try {
      await runItems(items, outcomes.current, settings, stopping.signal, () => redraw(undefined));
    } catch (error) {
      notifyError(error);
    } finally {
      setRunning((before) => (before === stopping ? null : before));
    }
  };
  return html`
    <div class="stack">
      <${TableField} table=${table} />
      <${WrongRows} wrong=${wrong} />
      <div class="row">
        ${
          running
            ? html`<${Button} kind="main" icon="stop" onClick=${() => running.abort()}>${t("score.stop")}<//>`
            : html`
                <${Button} kind="main" icon="score" disabled=${items.length === 0} onClick=${run}>
                  ${done > 0 && done < items.length ? t("score.resume") : t("score.runAll", { count: formatNumber(items.length) })}
                <//>
              `
        }
        ${table === "" && html`<${Button} onClick=${() => change({ table: TABLE })}>${t("score.example")}<//>`}
      </div>
      ${
        (running || done > 0) &&
        html`<${Outcomes} items=${items} outcomes=${outcomes.current} isRunning=${running !== null} />`
      }
    </div>
  `;
}

/** @param {string} table */
function read(table) {
  try {
    return itemsOf(parseTable(table));
  } catch (error) {
    if (!(error instanceof TableError)) throw error;
    return { items: [], wrong: [{ line: error.line, reason: t("score.wrong.quote") }] };
  }
}

/** @param {{table: string}} props */
function TableField({ table }) {
  return html`
    <${FileField}
      label=${t("score.table")}
      value=${table}
      placeholder=${t("score.table.placeholder")}
      accept=".csv,.tsv,.txt,text/csv,text/plain"
      button=${t("score.file")}
      hint=${t("score.file.hint")}
      onChange=${(/** @type {string} */ text) => change({ table: text })}
      onFiles=${(/** @type {string[]} */ texts) => change({ table: texts[0] })}
    />
  `;
}

/** @param {{wrong: import("./items.js").WrongRow[]}} props */
function WrongRows({ wrong }) {
  if (wrong.length === 0) return null;
  return html`
    <div class="failure" role="alert">
      <p>${t("score.wrong", { count: formatNumber(wrong.length) })}</p>
      <ul>
        ${wrong
          .slice(0, SHOWN_ERRORS)
          .map(({ line, reason }) => html`<li key=${line}>${t("score.wrong.line", { line: formatNumber(line), reason })}</li>`)}
      </ul>
    </div>
  `;
}
