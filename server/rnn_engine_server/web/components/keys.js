// What a pressed key is for.

/**
 * Return true for a key that an input method takes, such as the Enter that ends a word.
 * Safari sends that Enter after the end of the composition, with the key code 229.
 * @param {KeyboardEvent} event
 */
export const isOfInputMethod = ({ isComposing, keyCode }) => isComposing || keyCode === 229;

/** Return true for Enter without Shift. @param {KeyboardEvent} event */
export const isSendKey = (event) => event.key === "Enter" && !event.shiftKey && !isOfInputMethod(event);

/** @param {KeyboardEvent} event */
export const isEscape = (event) => event.key === "Escape" && !isOfInputMethod(event);
