// The line under an answer: its speed, and how much of its prompt was cached.

import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

/** @param {{message: import("./tree.js").Message}} props */
export function StatsLine({ message }) {
  const { stats, finish } = message;
  const parts = [];
  if (stats?.tokens) {
    parts.push(t("stats.speed", { tokens: formatNumber(stats.tokens), speed: formatNumber(stats.perSecond, 1) }));
  }
  if (stats?.firstMs) parts.push(t("stats.first", { ms: formatNumber(stats.firstMs) }));
  if (stats?.promptTokens) {
    parts.push(t("stats.saved", { saved: formatNumber(stats.cachedTokens), all: formatNumber(stats.promptTokens) }));
  }
  if (finish === "length") parts.push(t("stats.length"));
  if (finish === "stopped") parts.push(t("stats.stopped"));
  const seed = stats?.seed == null ? undefined : t("stats.seed", { seed: String(stats.seed) });
  return html`<p class="stats" title=${seed}>${parts.map((part) => html`<span key=${part}>${part} </span>`)}</p>`;
}
