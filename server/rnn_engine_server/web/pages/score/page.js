// The page Score: how likely the model takes given answers to be, for one question or for a table of them.

import { NoSuchPage } from "../../components/no_such_page.js";
import { Tabs } from "../../components/tabs.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";
import { DataSetPart } from "./dataset.js";
import { QuestionPart } from "./question.js";
import { SettingsForm } from "./settings_form.js";
import { restored } from "./state.js";

const PARTS = /** @type {const} */ ([
  ["question", "score.part.question", QuestionPart],
  ["table", "score.part.table", DataSetPart],
]);

/** @param {{rest: string}} props */
export function Page({ rest }) {
  const [ready, setReady] = useState(false);
  useEffect(() => void restored.then(() => setReady(true)), []);
  const found = rest === "" ? PARTS[0] : PARTS.find(([part]) => part === rest);
  if (found === undefined) return html`<${NoSuchPage} address=${`score/${rest}`} />`;
  const [name, title, Part] = found;
  return html`
    <div class="page score">
      <${Tabs}
        label=${t("score.parts")}
        page="score"
        tabs=${PARTS.map(([part, text]) => ({ name: part, title: t(text) }))}
        current=${name}
      />
      <h1 class="unseen">${t(title)}</h1>
      ${
        ready &&
        html`
          <div class="score-columns">
            <div class="score-main"><${Part} key=${name} /></div>
            <section class="score-side" aria-label=${t("score.settings")}>
              <h2>${t("score.settings")}</h2>
              <${SettingsForm} />
            </section>
          </div>
        `
      }
    </div>
  `;
}
