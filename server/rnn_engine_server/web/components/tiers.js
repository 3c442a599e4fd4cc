// The tiers of the cache that have a copy of a state.

import { formatBytes } from "./format.js";
import { t } from "../strings/index.js";
import { html } from "../vendor/preact.js";

/**
 * Return the name of a tier.
 * @param {string} tier
 */
export function tierName(tier) {
  if (tier === "device" || tier === "host" || tier === "disk" || tier === "shared") return t(`tier.${tier}`);
  return tier;
}

/** @param {{bytes: Record<string, number>}} props */
export function Tiers({ bytes }) {
  const tiers = Object.entries(bytes);
  if (tiers.length === 0) return html`<span class="muted">${t("states.gone")}</span>`;
  return html`
    <span>
      ${tiers.map(
        ([tier, size]) => html`
          <span key=${tier} title=${`${tierName(tier)}: ${formatBytes(size)}`}>
            <i class=${`tier is-${tier}`}></i><span class="unseen">${tierName(tier)} ${formatBytes(size)}</span>
          </span>
        `,
      )}
    </span>
  `;
}
