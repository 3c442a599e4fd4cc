// The memory that the parts of a model take on device and host.

import { formatBytes } from "../../components/format.js";
import { tierName } from "../../components/tiers.js";
import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { Bars } from "./bars.js";

/** @param {{engine: import("./live.js").EngineStatus}} props */
export function Memory({ engine }) {
  return html`
    <section class="card" aria-label=${t("engine.memory")}>
      <div class="card-head"><h2>${t("engine.memory")}</h2></div>
      <${Bars}
        bars=${engine.memory.map(({ place, part, used, capacity }) => ({
          name: `${tierName(place)}: ${partName(part)}`,
          value: used,
          most: capacity,
          text:
            capacity === null
              ? formatBytes(used)
              : t("engine.used_of", { used: formatBytes(used), most: formatBytes(capacity) }),
        }))}
      />
    </section>
  `;
}

/** @param {string} part */
function partName(part) {
  switch (part) {
    case "weights":
    case "slots":
    case "cache":
    case "cache_index":
    case "named_states":
      return t(`engine.part.${part}`);
    default:
      return part;
  }
}
