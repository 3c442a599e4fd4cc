// The page Jobs: batches with their results, tunings, and the files of jobs.

import { NoSuchPage } from "../../components/no_such_page.js";
import { Tabs } from "../../components/tabs.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { BatchesPart } from "./batches.js";
import { FilesPart } from "./files.js";
import { TuningsPart } from "./tunings.js";

const PARTS = /** @type {const} */ ([
  ["batches", "jobs.batches", BatchesPart],
  ["tunings", "jobs.tunings", TuningsPart],
  ["files", "jobs.files", FilesPart],
]);

/** @param {{rest: string}} props */
export function Page({ rest }) {
  const found = rest === "" ? PARTS[0] : PARTS.find(([part]) => part === rest);
  if (found === undefined) return html`<${NoSuchPage} address=${`jobs/${rest}`} />`;
  const [name, title, Part] = found;
  return html`
    <div class="page jobs">
      <${Tabs}
        label=${t("jobs.parts")}
        page="jobs"
        tabs=${PARTS.map(([part, text]) => ({ name: part, title: t(text) }))}
        current=${name}
      />
      <h1 class="unseen">${t(title)}</h1>
      <${Part} key=${name} />
    </div>
  `;
}
