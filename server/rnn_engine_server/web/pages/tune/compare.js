// A chat with a tuned model beside the same chat with the plain one.

import { stream } from "../../api.js";
import { Button } from "../../components/button.js";
import { Markdown } from "../../components/markdown.js";
import { notifyError } from "../../components/notices.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useState } from "../../vendor/preact.js";

const MOST_TOKENS = 256;

/** @typedef {{question: string, tuned: string, answers: [string, string]}} Turn `tuned`: the title of the tuned model. */

/** @param {{plain: string, tuned: import("./tuning.js").Tuned}} props A later turn may have a newer `tuned`. */
export function Compare({ plain, tuned }) {
  const [turns, setTurns] = useState(/** @type {Turn[]} */ ([]));
  const [question, setQuestion] = useState("");
  const [running, setRunning] = useState(/** @type {AbortController | null} */ (null));
  useEffect(() => () => setRunning((before) => (before?.abort(), null)), []);
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (running !== null || question.trim() === "") return;
    const stopping = new AbortController();
    setRunning(stopping);
    setQuestion("");
    setTurns([...turns, { question, tuned: tuned.title, answers: ["", ""] }]);
    const answers = [plain, tuned.model].map((model, side) =>
      answer(model, messagesOf(turns, question, side), stopping.signal, (text) =>
        setTurns((before) => before.map((turn, place) => (place === turns.length ? withAnswer(turn, side, text) : turn))),
      ),
    );
    try {
      await Promise.all(answers);
    } catch (error) {
      stopping.abort();
      notifyError(error);
    } finally {
      setRunning((before) => (before === stopping ? null : before));
    }
  };
  return html`
    <section class="stack" aria-label=${t("tune.compare")}>
      <h2 class="part-title">${t("tune.compare")}</h2>
      ${turns.map(
        (turn, place) => html`
          <article key=${place} class="tune-turn" aria-label=${turn.question}>
            <p class="tune-asked">${turn.question}</p>
            ${turn.answers.map(
              (text, side) => html`
                <div key=${side} class="tune-answer">
                  <p class="muted small">${side === 0 ? t("tune.plain") : turn.tuned}</p>
                  <${Markdown} text=${text} />
                </div>
              `,
            )}
          </article>
        `,
      )}
      <form class="row" onSubmit=${ask}>
        <input
          class="grow"
          aria-label=${t("tune.ask")}
          placeholder=${t("tune.ask")}
          value=${question}
          onInput=${(/** @type {any} */ event) => setQuestion(event.target.value)}
        />
        ${
          running
            ? html`<${Button} icon="stop" onClick=${() => running.abort()}>${t("tune.stop")}<//>`
            : html`<${Button} kind="main" icon="send" type="submit">${t("tune.send")}<//>`
        }
        ${turns.length > 0 && !running && html`<${Button} kind="quiet" onClick=${() => setTurns([])}>${t("tune.clear")}<//>`}
      </form>
    </section>
  `;
}

/** @param {Turn} turn @param {number} side @param {string} text @returns {Turn} */
const withAnswer = (turn, side, text) => ({
  ...turn,
  answers: side === 0 ? [text, turn.answers[1]] : [turn.answers[0], text],
});

/** @param {Turn[]} turns @param {string} question @param {number} side */
const messagesOf = (turns, question, side) => [
  ...turns.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.answers[side] },
  ]),
  { role: "user", content: question },
];

/**
 * Let a model answer, and report the text so far after each part.
 * @param {string} model
 * @param {{role: string, content: string}[]} messages
 * @param {AbortSignal} signal
 * @param {(text: string) => void} report
 */
async function answer(model, messages, signal, report) {
  const body = { model, messages, temperature: 0, max_tokens: MOST_TOKENS, stream: true };
  let text = "";
  for await (const { choices } of stream("/v1/chat/completions", body, { signal })) {
    const part = choices?.[0]?.delta?.content;
    if (part) report((text += part));
  }
}
