// The text as an ordinary field with coloured tokens, and the alternatives of the token under the pointer.

import { isEscape, isOfInputMethod } from "../../components/keys.js";
import { Overlay } from "../../components/overlay.js";
import { useStore } from "../../store.js";
import { t } from "../../strings/index.js";
import { html, useEffect, useRef, useState } from "../../vendor/preact.js";
import { Alternatives } from "./alternatives.js";
import { cellAt } from "./cells.js";
import { offsetAt, Painter } from "./paint.js";
import { branches, currentText, fork, running, write } from "./session.js";

const LEAVE_MS = 200;
const POPOVER_SIZE = { width: 240, height: 310 }; // about

/** @typedef {{place: number, style: Record<string, string>}} Hovered */

/**
 * @param {{onCaret: (offset: number) => void, onGoOn: () => void, marked: number}} props `marked` is the place of the
 *   cell that is shown beside the text; -1 is none.
 */
export function Editor({ onCaret, onGoOn, marked }) {
  useStore(branches);
  const isRunning = useStore(running) !== null;
  const text = currentText();
  const painter = useRef(new Painter());
  const field = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const { hovered, look, leave, stay, close } = useHover(painter.current, field, box, text.cells);
  useFollow(box, isRunning, text);
  useCaret(field, onCaret);
  /** @param {HTMLElement} behind */
  const paint = (behind) => {
    painter.current.paint(behind, text);
    painter.current.mark("is-marked", marked);
    painter.current.mark("is-hovered", hovered?.place ?? -1);
  };
  /** @param {KeyboardEvent} event */
  const onKeyDown = (event) => {
    if (isEscape(event)) {
      close();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !isOfInputMethod(event)) {
      event.preventDefault();
      onGoOn();
    }
  };
  const shown = hovered && text.cells[hovered.place];
  return html`
    <div class="editor" ref=${box} onPointerLeave=${leave}>
      <${Overlay}
        value=${text.content}
        paint=${paint}
        onInput=${write}
        field=${field}
        aria-label=${t("write.text")}
        aria-describedby="write-hint"
        placeholder=${t("write.placeholder")}
        readonly=${isRunning}
        onKeyDown=${onKeyDown}
        onPointerMove=${look}
        onPointerDown=${close}
        onClick=${(/** @type {PointerEvent} */ event) => event.pointerType === "touch" && look(event)}
      >
        ${
          shown &&
          html`
            <div
              class="popover"
              style=${hovered.style}
              onPointerEnter=${stay}
              onPointerLeave=${leave}
            >
              <${Alternatives}
                cell=${shown}
                onChoose=${(/** @type {number} */ index, /** @type {any} */ chosen) => {
                  close();
                  fork(hovered.place, index, chosen);
                }}
              />
            </div>
          `
        }
      <//>
    </div>
  `;
}

/**
 * Return the cell under the pointer, and the handlers that show and hide its alternatives.
 * @param {Painter} painter
 * @param {{current: HTMLTextAreaElement | null}} field
 * @param {{current: HTMLElement | null}} box
 * @param {import("./cells.js").Cell[]} cells
 */
function useHover(painter, field, box, cells) {
  const [hovered, setHovered] = useState(/** @type {Hovered | null} */ (null));
  const timer = useRef(0);
  const stay = () => clearTimeout(timer.current);
  const close = () => {
    stay();
    setHovered(null);
  };
  const leave = () => {
    stay();
    timer.current = window.setTimeout(close, LEAVE_MS);
  };
  useEffect(() => stay, []);
  /** @param {PointerEvent} event */
  const look = (event) => {
    if ((event.pointerType === "touch" && event.type !== "click") || event.buttons !== 0 || !field.current || !box.current) return;
    const point = { x: event.clientX, y: event.clientY };
    const offset = offsetAt(field.current, point);
    const around = offset === null ? [] : [cellAt(cells, offset), cellAt(cells, Math.max(offset - 1, 0))];
    const place = around.find((one) => one !== -1 && painter.boxOf(one, point));
    if (place === undefined) return leave();
    stay();
    if (place === hovered?.place) return;
    const at = /** @type {DOMRect} */ (painter.boxOf(place, point));
    const outer = field.current.getBoundingClientRect();
    const seen = box.current.getBoundingClientRect();
    const left = Math.max(0, Math.min(at.left - outer.left, outer.width - POPOVER_SIZE.width - 8));
    const isLow = at.bottom + POPOVER_SIZE.height > seen.bottom && at.top - POPOVER_SIZE.height > seen.top;
    /** @type {Record<string, string>} */
    const edge = isLow ? { bottom: `${outer.bottom - at.top}px` } : { top: `${at.bottom - outer.top}px` };
    setHovered({ place, style: { left: `${left}px`, ...edge } });
  };
  return { hovered, look, leave, stay, close };
}

/**
 * Keep the end of the text in sight while it grows, if it was in sight.
 * @param {{current: HTMLElement | null}} box
 * @param {boolean} isRunning
 * @param {unknown} text
 */
function useFollow(box, isRunning, text) {
  const follows = useRef(true);
  useEffect(() => {
    const element = box.current;
    if (element === null) return undefined;
    const note = () => {
      follows.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
    };
    element.addEventListener("scroll", note, { passive: true });
    return () => element.removeEventListener("scroll", note);
  }, []);
  useEffect(() => {
    if (isRunning && follows.current && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [text, isRunning]);
}

/**
 * Call `onCaret` with the caret's offset whenever it moves.
 * @param {{current: HTMLTextAreaElement | null}} field
 * @param {(offset: number) => void} onCaret
 */
function useCaret(field, onCaret) {
  useEffect(() => {
    const moved = () => {
      if (field.current && document.activeElement === field.current) onCaret(field.current.selectionStart);
    };
    document.addEventListener("selectionchange", moved);
    return () => document.removeEventListener("selectionchange", moved);
  }, [onCaret]);
}
