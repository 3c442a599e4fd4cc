// The page States: what the cache keeps, states under names, two of them side by side, and a map of texts.

import { NoSuchPage } from "../../components/no_such_page.js";
import { Tabs } from "../../components/tabs.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { ComparePart } from "./compare.js";
import { MapPart } from "./map.js";
import { NamedPart } from "./named.js";
import { TreePart } from "./tree.js";

const PARTS = /** @type {const} */ ([
  ["tree", "states.tree", TreePart],
  ["named", "states.named", NamedPart],
  ["compare", "states.compare", ComparePart],
  ["map", "states.map", MapPart],
]);

/** @param {{rest: string}} props */
export function Page({ rest }) {
  const [chosen, ...further] = rest.split("/");
  const found = rest === "" ? PARTS[0] : PARTS.find(([part]) => part === chosen);
  if (found === undefined) return html`<${NoSuchPage} address=${`states/${rest}`} />`;
  const [name, title, Part] = found;
  return html`
    <div class="page states">
      <${Tabs}
        label=${t("states.parts")}
        page="states"
        tabs=${PARTS.map(([part, text]) => ({ name: part, title: t(text) }))}
        current=${name}
      />
      <h1 class="unseen">${t(title)}</h1>
      <${Part} key=${name} rest=${further.join("/")} />
    </div>
  `;
}
