// The losses of a tuning by its steps: of the examples that are learnt, and of those that are held out.

import { Chart } from "../../components/chart.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useMemo } from "../../vendor/preact.js";

/** @param {{events: import("./calls.js").TuningEvent[]}} props The oldest first. */
export function Losses({ events }) {
  const { steps, training, heldOut, all } = useMemo(() => curvesOf(events), [events]);
  return html`
    <${Chart}
      title=${t("tune.losses")}
      unit=${t("tune.losses.unit")}
      x=${steps}
      range=${[0, Math.max(all, 1)]}
      xText=${(/** @type {number} */ step) => formatNumber(step)}
      digits=${3}
      lines=${[
        { name: t("tune.loss.training"), colour: "--accent", values: training },
        { name: t("tune.loss.heldOut"), colour: "--series-2", values: heldOut, isSparse: true },
      ]}
    />
  `;
}

/** @param {import("./calls.js").TuningEvent[]} events */
function curvesOf(events) {
  /** @type {Map<number, {train_loss?: number | null, valid_loss?: number | null}>} */
  const found = new Map();
  let all = 0;
  for (const { data } of events) {
    if (data === null) continue;
    all = data.total_steps;
    found.set(data.step, { ...found.get(data.step), ...data });
  }
  const steps = [...found.keys()].sort((one, other) => one - other);
  return {
    steps,
    training: steps.map((step) => found.get(step)?.train_loss),
    heldOut: steps.map((step) => found.get(step)?.valid_loss),
    all,
  };
}
