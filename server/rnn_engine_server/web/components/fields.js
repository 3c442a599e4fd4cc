// Fields of a form: a slider with a number, a choice, a text.

import { html, useRef, useState } from "../vendor/preact.js";

let count = 0;

/** Return a unique id for a component, to tie a label to its field. */
export function useFieldId() {
  const id = useRef("");
  id.current ||= `field-${++count}`;
  return id.current;
}

/**
 * A slider and a number field for the same value.
 * @param {{
 *   label: string, value: number, min: number, max: number, step: number,
 *   hint?: string, onChange: (value: number) => void,
 * }} props The number field takes values beyond the slider's ends; the server says what is allowed.
 */
export function NumberField({ label, value, min, max, step, hint, onChange }) {
  const id = useFieldId();
  const [text, setText] = useState(/** @type {string | null} */ (null));
  /** @param {any} event */
  const typed = (event) => {
    setText(event.target.value);
    const number = event.target.valueAsNumber;
    if (!Number.isNaN(number)) onChange(number);
  };
  return html`
    <div class="field number-field">
      <label for=${id} title=${hint}>${label}</label>
      <input
        id=${id}
        type="number"
        step="any"
        value=${text ?? String(Number(value.toPrecision(5)))}
        onInput=${typed}
        onBlur=${() => setText(null)}
      />
      <input
        type="range"
        aria-label=${label}
        min=${min}
        max=${max}
        step=${step}
        value=${value}
        onInput=${(/** @type {any} */ event) => onChange(event.target.valueAsNumber)}
      />
    </div>
  `;
}

/**
 * @param {{
 *   label: string, value: string, options: {value: string, label: string}[], hint?: string,
 *   onChange: (value: string) => void, [attribute: string]: any,
 * }} props
 */
export function Select({ label, value, options, hint, onChange, ...attributes }) {
  const id = useFieldId();
  return html`
    <div class="field">
      <label for=${id} title=${hint}>${label}</label>
      <select id=${id} value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)} ...${attributes}>
        ${options.map((option) => html`<option key=${option.value} value=${option.value}>${option.label}</option>`)}
      </select>
    </div>
  `;
}

/**
 * A field for text of several lines, with its error below it, if any.
 * @param {{
 *   label: string, value: string, rows?: number, error?: string, onChange: (value: string) => void,
 *   [attribute: string]: any,
 * }} props
 */
export function TextField({ label, value, rows = 3, error, onChange, ...attributes }) {
  const id = useFieldId();
  return html`
    <div class="field">
      <label for=${id}>${label}</label>
      <textarea
        id=${id}
        rows=${rows}
        value=${value}
        aria-invalid=${error ? "true" : undefined}
        aria-describedby=${error ? `${id}-error` : undefined}
        onInput=${(/** @type {any} */ event) => onChange(event.target.value)}
        ...${attributes}
      ></textarea>
      ${error && html`<p class="field-error" id=${`${id}-error`} role="alert">${error}</p>`}
    </div>
  `;
}
