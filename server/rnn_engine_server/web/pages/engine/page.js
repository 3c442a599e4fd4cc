// The page Engine: running requests, and the models that are loaded or can be.

import { NoSuchPage } from "../../components/no_such_page.js";
import { Tabs } from "../../components/tabs.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { ModelsPart } from "./models.js";
import { NowPart } from "./now.js";

const PARTS = /** @type {const} */ ([
  ["now", "engine.now", NowPart],
  ["models", "engine.models", ModelsPart],
]);

/** @param {{rest: string}} props */
export function Page({ rest }) {
  const found = rest === "" ? PARTS[0] : PARTS.find(([part]) => part === rest);
  if (found === undefined) return html`<${NoSuchPage} address=${`engine/${rest}`} />`;
  const [name, title, Part] = found;
  return html`
    <div class="page engine">
      <${Tabs}
        label=${t("engine.parts")}
        page="engine"
        tabs=${PARTS.map(([part, text]) => ({ name: part, title: t(text) }))}
        current=${name}
      />
      <h1 class="unseen">${t(title)}</h1>
      <${Part} key=${name} />
    </div>
  `;
}
