// The page's texts in English. A key is the part of the page, a dot and a name.

export const en = {
  "nav.chat": "Chat",

  "shell.skip": "Skip to the content",
  "shell.pages": "Pages",
  "shell.model": "Model",
  "shell.close": "Close",
  "shell.notices": "Messages",

  "connection.connecting": "Connecting",
  "connection.ok": "Connected",
  "connection.busy": "The model is not ready",
  "connection.failed": "The model has failed",
  "connection.unreachable": "No connection",

  "theme.auto": "Colours: as the system",
  "theme.light": "Colours: light",
  "theme.dark": "Colours: dark",

  "error.unreachable": "The server does not answer. Is it running?",
  "error.broken": "The connection broke before the end.",

  "key.title": "API key",
  "key.needed": "This server asks for an API key. It is kept in this browser.",
  "key.wrong": "The server does not accept this key. Try another.",
  "key.label": "Key",
  "key.use": "Use this key",

  "copy.text": "Copy",
  "copy.code": "Copy code",
  "copy.done": "Copied",

  "chat.you": "You",
  "chat.model": "Model",
  "chat.message": "Message",
  "chat.placeholder": "Ask something. Enter sends, Shift+Enter begins a new line.",
  "chat.send": "Send",
  "chat.stop": "Stop (Escape)",
  "chat.new": "New conversation",
  "chat.thoughts": "Thoughts",
  "chat.hello": "What would you like to know?",
};
