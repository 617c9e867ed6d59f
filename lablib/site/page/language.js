// The page in another language: each text is looked up by its English text, wherever the page writes it. In a key of the
// catalogue {} stands for any text, which is looked up too. A text without a translation stays English.

const CODES = ["en", "zh"]; // of the switch #language
const chosen = new URLSearchParams(location.search).get("lang") ?? navigator.language;
export const language = CODES.find((code) => chosen.startsWith(code)) ?? "en";

const ATTRIBUTES = ["aria-label", "placeholder", "title", "content"];
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

// A function that translates: whole texts first, then patterns, the longest first.
function translator(catalogue) {
  const patterns = Object.entries(catalogue)
    .filter(([text]) => text.includes("{}"))
    .sort(([a], [b]) => a.startsWith("{}") - b.startsWith("{}") || b.length - a.length)
    .map(([text, translation]) => [new RegExp(`^${text.split("{}").map(escaped).join("(.*?)")}$`), translation]);
  return function say(text) {
    if (text in catalogue) return catalogue[text];
    for (const [pattern, translation] of patterns) {
      const found = pattern.exec(text);
      if (found) return translation.replace(/\{(\d+)\}/g, (_, index) => say(found[Number(index) + 1]));
    }
    return text;
  };
}

function translateNode(node, say) {
  if (node.nodeType === Node.TEXT_NODE) {
    const text = node.data.trim().replace(/\s+/g, " ");
    const said = text && say(text);
    if (said !== text) node.data = node.data.match(/^\s*/)[0] + said + node.data.match(/\s*$/)[0];
  }
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  for (const name of ATTRIBUTES.filter((each) => node.hasAttribute(each))) {
    const text = node.getAttribute(name), said = say(text);
    if (said !== text) node.setAttribute(name, said);
  }
  for (const child of node.childNodes) translateNode(child, say);
}

// Call it once, before the page writes: it translates what is there, and from then on what is added or changed.
export async function translatePage(catalogue) {
  const select = document.getElementById("language");
  select.value = language;
  select.addEventListener("change", () => (location.search = new URLSearchParams({ lang: select.value })));
  if (language === "en") return;
  const say = translator(await (await fetch(catalogue)).json());
  document.documentElement.lang = "zh-CN";
  translateNode(document.documentElement, say);
  new MutationObserver((changes) => {
    for (const { type, target, addedNodes } of changes) {
      for (const node of type === "childList" ? addedNodes : [target]) translateNode(node, say);
    }
  }).observe(document, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES });
}
