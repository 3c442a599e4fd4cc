// The alternatives to a token, each with its probability. A click on one forks the text there.

import { t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { nameOf, percentOf } from "../../components/token_names.js";

/** @typedef {import("./cells.js").Token} Token */
/** @typedef {import("./cells.js").Alternative} Alternative */

/**
 * @param {{
 *   cell: import("./cells.js").Cell,
 *   onChoose: (index: number, chosen: Alternative) => void,
 * }} props `onChoose` gets the place of the token in its cell, and the token to put there.
 */
export function Alternatives({ cell, onChoose }) {
  return cell.tokens.map(
    (token, index) => html`
      <div class="alternatives" key=${index}>
        <p class="alternatives-head">
          <span class="token-name">${nameOf(token)}</span>
          <span>${percentOf(token.logprob)}</span>
        </p>
        ${
          token.logprob === null
            ? html`<p class="muted">${t("write.first")}</p>`
            : html`
                <ol aria-label=${t("write.alternatives", { token: nameOf(token) })}>
                  ${withOwn(token).map(
                    (other) => html`
                      <${Choice}
                        key=${other.id}
                        other=${other}
                        own=${other.id === token.id}
                        onChoose=${() => onChoose(index, other)}
                      />
                    `,
                  )}
                </ol>
              `
        }
      </div>
    `,
  );
}

/** @param {Token} token @returns {Alternative[]} */
function withOwn({ id, bytes, logprob, top }) {
  return top.some((other) => other.id === id) ? top : [...top, { id, bytes, logprob: logprob ?? 0 }];
}

/** @param {{other: Alternative, own: boolean, onChoose: () => void}} props */
function Choice({ other, own, onChoose }) {
  const name = nameOf(other);
  const percent = percentOf(other.logprob);
  return html`
    <li>
      <button
        type="button"
        class=${own ? "choice is-own" : "choice"}
        aria-current=${own ? "true" : undefined}
        aria-label=${t(own ? "write.drawn" : "write.fork", { token: name, percent })}
        aria-disabled=${own ? "true" : undefined}
        onClick=${own ? undefined : onChoose}
      >
        <i class="choice-bar" style=${{ width: `${100 * Math.exp(other.logprob)}%` }}></i>
        <span class="token-name">${name}</span>
        <span class="choice-percent">${percent}</span>
      </button>
    </li>
  `;
}
