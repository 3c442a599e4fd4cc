// The facts of the last continuation, the perplexity of the text, and the meaning of its colours.

import { useStore } from "../../store.js";
import { formatNumber, t } from "../../strings/index.js";
import { html, useMemo } from "../../vendor/preact.js";
import { STEPS } from "../../components/probability_scale.js";
import { branches, currentText, facts } from "./session.js";
import { perplexityOf } from "./text.js";

export function Status() {
  useStore(branches);
  const known = useStore(facts);
  const { cells } = currentText();
  const { perplexity, count } = useMemo(() => perplexityOf(cells), [cells]);
  return html`
    <div class="write-status">
      <p class="write-facts">
        ${known && factsOf(known).map((fact) => html`<span key=${fact.name} title=${fact.hint}>${fact.text}</span>`)}
        ${
          perplexity !== null &&
          html`<span title=${t("write.perplexity.hint")}>
            ${t("write.perplexity", { value: formatNumber(perplexity, 2), count: formatNumber(count) })}
          </span>`
        }
      </p>
      <${Legend} />
    </div>
    <p class="unseen" role="status">${known && t(`write.said.${known.end}`, { count: known.tokens })}</p>
  `;
}

/** @param {import("./session.js").Facts} known */
function factsOf({ tokens, perSecond, firstMs, promptTokens, reused, read, end }) {
  if (end === "running" && tokens === 0) return [{ name: "read", text: readSoFar(read, promptTokens), hint: "" }];
  const speed = perSecond === null ? null : formatNumber(perSecond, perSecond < 10 ? 1 : 0);
  return [
    { name: "tokens", text: t("write.tokens", { count: formatNumber(tokens) }), hint: t(`write.ended.${end}`) },
    ...(speed === null ? [] : [{ name: "speed", text: t("write.speed", { speed }), hint: "" }]),
    ...(firstMs === null
      ? []
      : [{ name: "first", text: t("write.firstToken", { ms: formatNumber(firstMs) }), hint: t("write.firstToken.hint") }]),
    ...(reused === null || promptTokens === null
      ? []
      : [
          {
            name: "reused",
            text: t("write.reused", { reused: formatNumber(reused), all: formatNumber(promptTokens) }),
            hint: t("write.reused.hint"),
          },
        ]),
    ...(end === "running" ? [] : [{ name: "end", text: t(`write.ended.${end}`), hint: "" }]),
  ];
}

/** @param {number} read @param {number | null} all */
function readSoFar(read, all) {
  if (all === null || read === 0) return t("write.ended.running");
  return t("write.read", { read: formatNumber(read), all: formatNumber(all) });
}

function Legend() {
  return html`
    <ul class="token-legend" aria-label=${t("write.legend")}>
      ${STEPS.map(
        (least, step) => html`
          <li key=${step}><i class=${`token is-step-${step}`} aria-hidden="true"></i>${boundsOf(least, step)}</li>
        `,
      )}
    </ul>
  `;
}

/** @param {number} least @param {number} step */
function boundsOf(least, step) {
  const percent = (/** @type {number} */ value) => formatNumber(100 * value);
  if (step === 0) return `≥ ${percent(least)} %`;
  if (least === 0) return `< ${percent(STEPS[step - 1])} %`;
  return `${percent(least)}–${percent(STEPS[step - 1])} %`;
}
