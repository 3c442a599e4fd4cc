// The tokens that the cache has saved since the start, and the reasons why look-ups found nothing.

import { formatShare } from "../../components/format.js";
import { tierName } from "../../components/tiers.js";
import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { Bars } from "./bars.js";

/** @param {{engine: import("./live.js").EngineStatus}} props */
export function CacheCounts({ engine }) {
  const { cache, tiers } = engine;
  if (cache === null) return null;
  const misses = Object.entries(/** @type {Record<string, number>} */ (cache.misses)).filter(([, count]) => count > 0);
  const bars = [
    ...tiers.map(({ tier, hits }) => ({ name: t("engine.hit_in", { tier: tierName(tier) }), value: hits, kind: "is-hit" })),
    ...misses.map(([reason, count]) => ({ name: reasonName(reason), value: count, kind: "is-miss" })),
  ];
  const saved = cache.tokens_looked_up === 0 ? 0 : cache.tokens_saved / cache.tokens_looked_up;
  return html`
    <section class="card" aria-label=${t("engine.cache")}>
      <div class="card-head">
        <h2>${t("engine.cache")}</h2>
        <span class="muted">${t("engine.saved", { n: formatNumber(cache.tokens_saved), share: formatShare(saved) })}</span>
      </div>
      <${Bars} bars=${bars.map((bar) => ({ ...bar, text: formatNumber(bar.value) }))} />
    </section>
  `;
}

/** @param {string} reason */
function reasonName(reason) {
  switch (reason) {
    case "no_paths":
    case "unknown_prompt":
    case "no_checkpoint":
    case "no_logits":
    case "beyond_limit":
    case "evicted":
    case "not_fetched":
    case "damaged":
      return t(`engine.miss.${reason}`);
    default:
      return reason;
  }
}
