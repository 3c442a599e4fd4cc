// The choices of a question as bars of probability, each with its tokens.

import { formatNumber, t } from "../../strings/index.js";
import { html } from "../../vendor/preact.js";
import { percentOf, seenText } from "../../components/token_names.js";
import { stepOf } from "../../components/probability_scale.js";
import { bestOf } from "./scoring.js";

/** @typedef {import("./scoring.js").Score} Score */

/**
 * @param {{
 *   choices: string[], scores: Score[], figure: import("./scoring.js").Figure,
 * }} props
 */
export function Bars({ choices, scores, figure }) {
  const best = bestOf(scores, figure);
  return html`
    <ol class="bars" aria-label=${t("score.result")}>
      ${scores.map(
        (score, place) => html`
          <li key=${place} class=${place === best ? "is-best" : ""}>
            <div class="bar-head">
              <span class="bar-name">${choices[place]}</span>
              ${place === best && html`<span class="badge">${t("score.best")}</span>`}
              <span class="number">${percentOf(Math.log(score.probability))}</span>
            </div>
            <div class="bar-track" aria-hidden="true">
              <i style=${{ width: `${100 * score.probability}%` }}></i>
            </div>
            <details class="bar-more">
              <summary>
                ${t("score.figures", {
                  total: formatNumber(score.total, 2),
                  mean: formatNumber(score.mean, 3),
                  bytes: score.per_byte === null ? "–" : formatNumber(score.per_byte, 3),
                  perplexity: score.perplexity === null ? "–" : formatNumber(score.perplexity, 2),
                })}
              </summary>
              <${Tokens} tokens=${score.tokens} />
            </details>
          </li>
        `,
      )}
    </ol>
  `;
}

/** @param {{tokens: import("./scoring.js").ScoredToken[]}} props */
function Tokens({ tokens }) {
  const calibrated = tokens.some(({ alone }) => alone !== undefined);
  return html`
    <div class="table-box" tabindex="0" role="group" aria-label=${t("score.tokens")}>
      <table class="score-tokens">
        <tbody>
          <tr>
            <th scope="row">${t("score.token")}</th>
            ${tokens.map(
              ({ token, logprob }, place) => html`
                <td key=${place}><span class=${`token is-step-${stepOf(logprob)}`}>${seenText(token)}</span></td>
              `,
            )}
          </tr>
          <tr>
            <th scope="row">${t("score.given")}</th>
            ${tokens.map(({ logprob }, place) => html`<td key=${place}>${rounded(logprob)}</td>`)}
          </tr>
          ${
            calibrated &&
            html`
              <tr>
                <th scope="row">${t("score.alone")}</th>
                ${tokens.map(({ alone }, place) => html`<td key=${place}>${rounded(alone ?? 0)}</td>`)}
              </tr>
              <tr>
                <th scope="row">${t("score.gain")}</th>
                ${tokens.map(({ logprob, alone }, place) => html`<td key=${place}>${gain(logprob - (alone ?? 0))}</td>`)}
              </tr>
            `
          }
        </tbody>
      </table>
    </div>
  `;
}

/** @param {number} value @returns {string} With two digits, and no sign before a zero. */
const rounded = (value) => formatNumber(Math.round(100 * value) / 100 || 0, 2);

/** @param {number} value */
const gain = (value) => `${value >= 0.005 ? "+" : ""}${rounded(value)}`;
