// A field for text with something painted behind its letters. Both lie in one cell of a grid and grow with the text.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";

/**
 * @param {{
 *   value: string, paint: (behind: HTMLElement) => void, onInput: (value: string) => void,
 *   field?: {current: HTMLTextAreaElement | null}, children?: any, [attribute: string]: any,
 * }} props `paint` is called after each drawing; it fills `behind` with the text, plain or in spans. Further
 *   attributes go to the field, whose element `field` receives. Children are laid over it.
 */
export function Overlay({ value, paint, onInput, field, children, ...attributes }) {
  const behind = useRef(/** @type {HTMLElement | null} */ (null));
  useLayoutEffect(() => {
    if (behind.current !== null) paint(behind.current);
  });
  return html`
    <div class="overlay">
      <div class="overlay-behind" aria-hidden="true" ref=${behind}></div>
      <textarea
        ref=${field}
        value=${value}
        spellcheck=${false}
        autocapitalize="off"
        autocomplete="off"
        onInput=${(/** @type {any} */ event) => onInput(event.target.value)}
        ...${attributes}
      ></textarea>
      ${children}
    </div>
  `;
}
