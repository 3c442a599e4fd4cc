// The page's texts in Chinese, under the same keys as in en.js.

/** @type {Record<keyof typeof import("./en.js").en, string>} */
export const zh = {
  "nav.chat": "对话",

  "shell.skip": "跳到正文",
  "shell.pages": "页面",
  "shell.model": "模型",
  "shell.close": "关闭",
  "shell.notices": "消息",

  "connection.connecting": "正在连接",
  "connection.ok": "已连接",
  "connection.busy": "模型尚未就绪",
  "connection.failed": "模型出错",
  "connection.unreachable": "无法连接",

  "theme.auto": "配色：跟随系统",
  "theme.light": "配色：浅色",
  "theme.dark": "配色：深色",

  "error.unreachable": "服务器没有响应。它在运行吗？",
  "error.broken": "连接在结束前中断了。",

  "key.title": "API 密钥",
  "key.needed": "此服务器需要 API 密钥。密钥保存在本浏览器中。",
  "key.wrong": "服务器不接受这个密钥，请换一个。",
  "key.label": "密钥",
  "key.use": "使用此密钥",

  "copy.text": "复制",
  "copy.code": "复制代码",
  "copy.done": "已复制",

  "chat.you": "你",
  "chat.model": "模型",
  "chat.message": "消息",
  "chat.placeholder": "输入问题。Enter 发送，Shift+Enter 换行。",
  "chat.send": "发送",
  "chat.stop": "停止（Esc）",
  "chat.new": "新对话",
  "chat.thoughts": "思考过程",
  "chat.hello": "想知道些什么？",
};
