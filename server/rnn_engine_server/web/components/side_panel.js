// Parts of the page that depend on the width of the window.

import { html, useEffect, useState } from "../vendor/preact.js";
import { Dialog } from "./dialog.js";

/**
 * Return whether a media query such as `(width >= 960px)` holds, and draw the component again when that changes.
 * @param {string} query
 */
export function useMedia(query) {
  const [holds, setHolds] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const change = () => setHolds(list.matches);
    change();
    list.addEventListener("change", change);
    return () => list.removeEventListener("change", change);
  }, [query]);
  return holds;
}

/**
 * A column beside the page if that is wide enough, else a drawer.
 * @param {{title: string, side: "left" | "right", wide: boolean, onClose: () => void, children?: any}} props
 */
export function SidePanel({ title, side, wide, onClose, children }) {
  if (wide) return html`<aside class=${`side-panel is-${side}`} aria-label=${title}>${children}</aside>`;
  return html`<${Dialog} title=${title} side=${side} onClose=${onClose}>${children}<//>`;
}
