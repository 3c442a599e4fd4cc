// A text in the form of RWKV World's conversations, as messages.

const ROLES = /** @type {const} */ ({ User: "user", Assistant: "assistant" });
const RECORD = /(?:^|\n\n)(System|User|Assistant):/;

/**
 * @typedef {object} ChatText
 * @property {string} system
 * @property {{role: "user" | "assistant", content: string}[]} messages
 * @property {boolean} isAsking The text ends at the place of the next answer.
 */

/**
 * Return the messages of a text; null if it has another form.
 * @param {string} text
 * @returns {ChatText | null}
 */
export function readChat(text) {
  const [before, ...parts] = text.split(RECORD);
  if (before !== "" || parts.length === 0) return null;
  /** @type {ChatText} */
  const chat = { system: "", messages: [], isAsking: false };
  for (let index = 0; index < parts.length; index += 2) {
    const name = /** @type {"System" | "User" | "Assistant"} */ (parts[index]);
    const content = parts[index + 1].trim();
    const isLast = index + 2 === parts.length;
    if (name === "System") {
      if (index > 0) return null;
      chat.system = content;
    } else if (name === "Assistant" && isLast && content === "") {
      chat.isAsking = true;
    } else {
      chat.messages.push({ role: ROLES[name], content });
    }
  }
  return chat.messages.length === 0 && chat.system === "" ? null : chat;
}
