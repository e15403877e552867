/** Every word that the page says, in each of its languages. `{name}` is filled in. */

export const TEXTS = {
  en: {
    language: "English",
    title: "Fewer · chat",
    skip: "Skip to the message field",
    route: "Route",
    noRoutes: "No route",
    newChat: "New chat",
    settings: "Settings",
    theme: "Switch between light and dark",
    switchLanguage: "切换到简体中文",
    conversation: "Conversation",
    welcome: "What would you like to know?",
    welcomeNote: "Answers stream through your own gateway, each with what it cost.",
    suggestion1: "What is the capital of Japan?",
    suggestion2: "Explain a prefix cache in two sentences.",
    suggestion3: "Write a Python function that reverses a list.",
    message: "Message",
    placeholder: "Message",
    send: "Send",
    stop: "Stop",
    hint: "Enter sends · Shift+Enter starts a new line · Esc stops",
    toEnd: "To the latest text",
    you: "You asked:",
    answer: "Answer:",
    thinking: "Reasoning",
    copy: "Copy",
    copied: "Copied",
    copyFailed: "Select the text to copy it",
    retry: "Try again",
    waiting: "Waiting for the first token…",
    ttft: "TTFT",
    ttftLong: "Time to first token, on this browser's clock",
    seconds: "{value} s",
    speed: "Speed",
    speedLong: "Tokens per second after the first token",
    perSecond: "{value} tok/s",
    tokensIn: "In",
    tokensInLong: "Tokens of the prompt",
    tokensOut: "Out",
    tokensOutLong: "Tokens of the answer",
    cached: "Cached",
    cachedLong: "Tokens of the prompt that the engine had in its cache",
    about: "≈ {value}",
    aboutLong: "Counted by this page: a stopped answer reports no usage",
    model: "Model",
    modelLong: "The model that answered",
    policies: "Policies",
    noPolicies: "none changed this request",
    actionKeep: "left it as it was",
    actionRewrite: "changed the request",
    actionAnswer: "answered itself",
    actionRefuse: "refused",
    shadow: "shadow: not applied",
    lengthNotice: "The answer ends here because it reached its limit of tokens.",
    filterNotice: "A policy ended this answer.",
    stoppedNotice: "You stopped this answer.",
    emptyNotice: "The model ended its answer without a word.",
    announceStart: "Answering",
    announceEnd: "The answer is complete.",
    announceStop: "Stopped.",
    announceNew: "New chat.",
    requestId: "Request {id}",
    systemPrompt: "System prompt",
    systemPromptNote: "Sent ahead of every conversation, from the next message on.",
    maxTokens: "Longest answer, in tokens",
    maxTokensNote: "Empty: as long as the route allows.",
    changeKey: "API key…",
    close: "Close",
    keyTitle: "This gateway asks for a key",
    keyNote: "It is kept in this tab only, and forgotten when you close it.",
    keyLabel: "API key",
    keyUse: "Use this key",
    cancel: "Cancel",
    unreachable: "The gateway cannot be reached.",
    unreachableHint: "Check that it is running (`fewer serve`) and that you are connected.",
    broken: "The connection ended before the answer did.",
    brokenHint: "What arrived is above. Try again for a whole answer.",
    streamFailed: "The answer failed on the way.",
    streamFailedHint: "What arrived is above. Try again; if it happens again, see the gateway's log.",
    status400: "The request was not accepted.",
    status400Hint: "Change the message or the settings, then try again.",
    contextHint: "The conversation is too long for this model. Start a new chat, shorten the message, or lower the longest answer.",
    status401: "A valid API key is needed.",
    status401Hint: "Enter one and the question is asked again.",
    status403: "This key may not use this route.",
    status403Hint: "Choose another route or another key.",
    status404: "This route does not exist any more.",
    status404Hint: "Choose another route.",
    status413: "The message is too large.",
    status413Hint: "Shorten it or start a new chat.",
    status429: "A limit of this key is used up.",
    status429Hint: "Wait a little, or ask whoever gave you the key.",
    status503: "The model cannot answer at the moment.",
    status503Hint: "It may be busy or starting. Try again in a moment.",
    status500: "The gateway failed to answer.",
    status500Hint: "Try again; if it happens again, see the gateway's log.",
    waitHint: "Try again in {seconds} s.",
  },
  "zh-CN": {
    language: "简体中文",
    title: "Fewer · 对话",
    skip: "跳到消息输入框",
    route: "路由",
    noRoutes: "没有路由",
    newChat: "新对话",
    settings: "设置",
    theme: "切换浅色与深色",
    switchLanguage: "Switch to English",
    conversation: "对话内容",
    welcome: "想了解些什么？",
    welcomeNote: "回答经由你自己的网关实时生成，并附上它的开销。",
    suggestion1: "日本的首都是哪里？",
    suggestion2: "用两句话解释什么是前缀缓存。",
    suggestion3: "用 Python 写一个反转列表的函数。",
    message: "消息",
    placeholder: "输入消息",
    send: "发送",
    stop: "停止",
    hint: "Enter 发送 · Shift+Enter 换行 · Esc 停止",
    toEnd: "回到最新内容",
    you: "你的提问：",
    answer: "回答：",
    thinking: "思考过程",
    copy: "复制",
    copied: "已复制",
    copyFailed: "请选中文字后复制",
    retry: "重试",
    waiting: "正在等待第一个 token……",
    ttft: "首 token",
    ttftLong: "从发送到第一个 token 的时间，以本浏览器计时",
    seconds: "{value} 秒",
    speed: "速度",
    speedLong: "第一个 token 之后每秒生成的 token 数",
    perSecond: "{value} token/秒",
    tokensIn: "输入",
    tokensInLong: "提示词的 token 数",
    tokensOut: "输出",
    tokensOutLong: "回答的 token 数",
    cached: "缓存",
    cachedLong: "提示词中引擎缓存命中的 token 数",
    about: "约 {value}",
    aboutLong: "由本页面计数：中途停止的回答不返回用量",
    model: "模型",
    modelLong: "给出回答的模型",
    policies: "策略",
    noPolicies: "没有策略改动本次请求",
    actionKeep: "未改动",
    actionRewrite: "改写了请求",
    actionAnswer: "直接作答",
    actionRefuse: "拒绝",
    shadow: "影子模式：未生效",
    lengthNotice: "已达到 token 上限，回答到此为止。",
    filterNotice: "策略终止了本次回答。",
    stoppedNotice: "你停止了本次回答。",
    emptyNotice: "模型没有输出任何内容就结束了。",
    announceStart: "正在回答",
    announceEnd: "回答完毕。",
    announceStop: "已停止。",
    announceNew: "已开始新对话。",
    requestId: "请求 {id}",
    systemPrompt: "系统提示词",
    systemPromptNote: "从下一条消息起，置于每次对话之前。",
    maxTokens: "回答的最大 token 数",
    maxTokensNote: "留空则以路由允许的上限为准。",
    changeKey: "API 密钥……",
    close: "关闭",
    keyTitle: "此网关需要密钥",
    keyNote: "密钥只保存在当前标签页，关闭后即被清除。",
    keyLabel: "API 密钥",
    keyUse: "使用此密钥",
    cancel: "取消",
    unreachable: "无法连接网关。",
    unreachableHint: "请确认网关正在运行（`fewer serve`）并且网络可用。",
    broken: "回答尚未结束，连接就中断了。",
    brokenHint: "已收到的内容在上方。重试可获得完整回答。",
    streamFailed: "回答在途中失败了。",
    streamFailedHint: "已收到的内容在上方。请重试；若再次出现，请查看网关日志。",
    status400: "请求未被接受。",
    status400Hint: "请修改消息或设置后重试。",
    contextHint: "对话超出了模型的上下文长度。请开始新对话、缩短消息，或调低回答的最大 token 数。",
    status401: "需要有效的 API 密钥。",
    status401Hint: "输入密钥后会重新提问。",
    status403: "此密钥无权使用该路由。",
    status403Hint: "请换一个路由或密钥。",
    status404: "该路由已不存在。",
    status404Hint: "请选择其他路由。",
    status413: "消息过大。",
    status413Hint: "请缩短消息或开始新对话。",
    status429: "此密钥的额度已用完。",
    status429Hint: "请稍候，或联系密钥的提供者。",
    status503: "模型暂时无法回答。",
    status503Hint: "可能正忙或正在启动，请稍后重试。",
    status500: "网关未能给出回答。",
    status500Hint: "请重试；若再次出现，请查看网关日志。",
    waitHint: "请在 {seconds} 秒后重试。",
  },
};

export const LANGUAGES = Object.keys(TEXTS);

/** The language to start in: the one chosen before, else the browser's first that the page speaks. */
export function preferredLanguage(chosen, browserLanguages) {
  if (LANGUAGES.includes(chosen)) return chosen;
  for (const language of browserLanguages) {
    if (/^zh\b/i.test(language)) return "zh-CN";
    if (/^en\b/i.test(language)) return "en";
  }
  return "en";
}

/** Speaks one language at a time. */
export class Speech {
  constructor(language) {
    this.language = language;
  }

  say(key, values = {}) {
    return TEXTS[this.language][key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  number(value, digits = 0) {
    return value.toLocaleString(this.language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }

  duration(seconds) {
    return this.say("seconds", { value: this.number(seconds, seconds < 10 ? 2 : 1) });
  }

  /** What a policy did, in words; an action that the page does not know, as the gateway spelt it. */
  action(name) {
    const key = `action${name.charAt(0).toUpperCase()}${name.slice(1)}`;
    return Object.hasOwn(TEXTS[this.language], key) ? this.say(key) : name;
  }

  /** Put the texts into every element of `root` that names one. */
  apply(root) {
    for (const element of root.querySelectorAll("[data-text]")) element.textContent = this.say(element.dataset.text);
    for (const element of root.querySelectorAll("[data-label]")) {
      element.setAttribute("aria-label", this.say(element.dataset.label));
      element.title = element.getAttribute("aria-label");
    }
    for (const element of root.querySelectorAll("[data-title]")) element.title = this.say(element.dataset.title);
    for (const element of root.querySelectorAll("[data-placeholder]")) {
      element.placeholder = this.say(element.dataset.placeholder);
    }
  }
}
