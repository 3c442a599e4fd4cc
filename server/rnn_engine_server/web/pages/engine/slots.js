// The slots, a row for each with its request and owner, and the number of waiting requests.

import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";

/** @typedef {import("./live.js").SlotStatus} SlotStatus */

/** @param {{engine: import("./live.js").EngineStatus}} props */
export function Slots({ engine }) {
  const held = new Map(engine.slots.map((slot) => [slot.slot, slot]));
  const summary = t("engine.slots_used", { n: held.size, all: engine.num_slots, queued: formatNumber(engine.queued) });
  return html`
    <section class="card is-wide" aria-label=${t("engine.slots")}>
      <div class="card-head">
        <h2>${t("engine.slots")}</h2>
        <span class="muted">${summary}</span>
      </div>
      <ol class="slots">
        ${Array.from({ length: engine.num_slots }, (_, slot) => html`<${Slot} key=${slot} number=${slot} held=${held.get(slot)} />`)}
      </ol>
    </section>
  `;
}

/** @param {{number: number, held: SlotStatus | undefined}} props */
function Slot({ number, held }) {
  const [share, text] = held === undefined ? [0, t("engine.free")] : progressOf(held);
  return html`
    <li class=${`slot is-${held?.phase ?? "free"}`}>
      <span class="slot-number">${number}</span>
      <span class="slot-phase">${held === undefined ? t("engine.free") : t(`engine.phase.${held.phase}`)}</span>
      <span class="slot-bar" aria-hidden="true"><i style=${{ width: `${100 * share}%` }}></i></span>
      <span class="slot-text">${held && text}${held?.owner ? html` <b>${held.owner}</b>` : ""}</span>
    </li>
  `;
}

/** @param {SlotStatus} slot @returns {[number, string]} */
function progressOf(slot) {
  const { phase, prompt_tokens, cached_tokens, run_tokens, generated_tokens, max_tokens } = slot;
  if (phase === "prompt") {
    const text = t("engine.prompt_progress", {
      run: formatNumber(run_tokens),
      all: formatNumber(prompt_tokens),
      cached: formatNumber(cached_tokens),
    });
    return [run_tokens / prompt_tokens, text];
  }
  const values = { n: formatNumber(generated_tokens), most: formatNumber(max_tokens), prompt: formatNumber(prompt_tokens) };
  return [Math.min(generated_tokens / Math.max(max_tokens, 1), 1), t("engine.decode_progress", values)];
}
