// Markdown as models write it, to elements. Text becomes text nodes and nothing else; links lead to the web or to mail.

import { element } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
// Space stands in one place between two signs: where it could in two, a long run of it takes quadratic time.
const TABLE_RULE = /^\s*(?:\|\s*)?:?-+:?\s*(?:\|\s*:?-+:?\s*)*(?:\|\s*)?$/;
const LINK = /^(https?:\/\/|mailto:)/i;
const DEEPEST = 20;
const LONGEST = 4000; // characters in which what begins must end

const begins = (line) => FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);
const isTable = (lines, at) => lines[at].includes("|") && TABLE_RULE.test(lines[at + 1] ?? "");

// How many lines from `at` on make one block.
function blockLength(lines, at) {
  const rest = (test) => {
    let end = at + 1;
    while (end < lines.length && test(lines[end])) ++end;
    return end - at;
  };
  const fence = FENCE.exec(lines[at]);
  if (fence) {
    let end = at + 1;
    while (end < lines.length && !lines[end].trim().startsWith(fence[1])) ++end;
    return Math.min(end + 1, lines.length) - at;
  }
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return 1;
  if (QUOTE.test(lines[at])) return rest((line) => QUOTE.test(line));
  if (ITEM.test(lines[at])) {
    // Blank lines belong to it when it goes on behind them.
    const [, indent, marker] = ITEM.exec(lines[at]);
    const isOther = (line) => {
      const next = ITEM.exec(line);
      return next !== null && next[1].length <= indent.length && /\d/.test(next[2]) !== /\d/.test(marker);
    };
    let end = at + 1;
    for (let i = at + 1; i < lines.length && !isOther(lines[i]); ++i) {
      const goesOn = ITEM.test(lines[i]) || /^\s{2,}\S/.test(lines[i]);
      const lazy = lines[i].trim() !== "" && lines[i - 1].trim() !== "" && !begins(lines[i]);
      if (goesOn || lazy) {
        end = i + 1;
      } else if (lines[i].trim() !== "") {
        break;
      }
    }
    return end - at;
  }
  if (isTable(lines, at)) return rest((line) => line.includes("|"));
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== "" && !begins(lines[end]) && !isTable(lines, end)) ++end;
  return end - at;
}

function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length; ) {
    if (lines[at].trim() === "") {
      ++at;
      continue;
    }
    const length = blockLength(lines, at);
    blocks.push(lines.slice(at, at + length));
    at += length;
  }
  return blocks;
}

function codeBlock(lines) {
  const [, fence, language] = FENCE.exec(lines[0]);
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(fence);
  const code = lines.slice(1, closed ? -1 : undefined).join("\n");
  const copy = element("button", {
    type: "button",
    class: "copy",
    text: "Copy",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(code);
        copy.textContent = "Copied";
      } catch {
        copy.textContent = "This browser forbids it";
      }
      setTimeout(() => (copy.textContent = "Copy"), 2000);
    },
  });
  return element(
    "figure",
    { class: "code" },
    element("figcaption", {}, element("span", { text: language || "code" }), copy),
    element("pre", { tabindex: "0" }, element("code", { text: code })),
  );
}

function list(lines, depth) {
  const [, indent, first] = ITEM.exec(lines[0]);
  const ordered = /\d/.test(first);
  const node = element(ordered ? "ol" : "ul", ordered ? { start: Number.parseInt(first, 10) } : {});
  let item = null;
  const close = () => {
    if (item === null) return;
    const child = element("li");
    const text = item.join("\n");
    // One line is the item itself, more are blocks of its own.
    if (item.length === 1) child.append(...inline(text));
    else child.append(...blocksOf(text).map((block) => blockNode(block, depth + 1)));
    node.append(child);
  };
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent.length + 1) {
      close();
      item = [match[3]];
    } else {
      item.push(line.replace(new RegExp(`^\\s{0,${indent.length + first.length + 1}}`), ""));
    }
  }
  close();
  return node;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  const row = (line, tag) => element("tr", {}, ...cells(line).map((cell) => element(tag, {}, ...cell)));
  return element(
    "div",
    { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    element(
      "table",
      {},
      element("thead", {}, row(lines[0], "th")),
      element("tbody", {}, ...lines.slice(2).map((line) => row(line, "td"))),
    ),
  );
}

// A regular expression would begin anew at each "#" of a long run.
function withoutClosing(title) {
  let end = title.length;
  while (end > 0 && title[end - 1] === "#") --end;
  return title.slice(0, end).trim();
}

function blockNode(lines, depth) {
  if (depth > DEEPEST) return element("p", { text: lines.join("\n") });
  if (FENCE.test(lines[0])) return codeBlock(lines);
  const heading = HEADING.exec(lines[0]);
  // The page's own headings come before those of a reply.
  if (heading) return element(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(withoutClosing(heading[2].trim())));
  if (RULE.test(lines[0])) return element("hr");
  if (QUOTE.test(lines[0])) {
    const inner = lines.map((line) => line.replace(QUOTE, "")).join("\n");
    return element("blockquote", {}, ...blocksOf(inner).map((block) => blockNode(block, depth + 1)));
  }
  if (ITEM.test(lines[0])) return list(lines, depth);
  if (lines.length > 1 && isTable(lines, 0)) return table(lines);
  return element("p", {}, ...inline(lines.join("\n")));
}

const INLINE = [
  [/^\\([!-/:-@[-`{-~])/, (match) => [match[1]]],
  [/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (match) => [element("code", { text: match[2].trim() || match[2] })]],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, (match, depth) => [element("strong", {}, ...inline(match[1], depth))]],
  [/^\*(?![\s*])([^*]*[^\s*])\*(?!\*)/, (match, depth) => [element("em", {}, ...inline(match[1], depth))]],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (match, depth) => [element("del", {}, ...inline(match[1], depth))]],
  [/^\[([^[\]\n]+)\]\(([^\s)]+)(?:\s+"[^"\n]*")?\)/, (match, depth) => link(match[2], inline(match[1], depth), match[0])],
  [/^https?:\/\/[^\s<>"')\]]*[^\s<>"')\].,;:!?]/, (match) => link(match[0], [match[0]], match[0])],
];

// Any other scheme would let a reply run scripts of its own.
function link(address, content, source) {
  if (!LINK.test(address)) return [source];
  return [element("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, ...content)];
}

// Nodes and strings for `append`.
function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const nodes = [];
  let plain = "";
  const flush = () => {
    plain.split("\n").forEach((line, i) => {
      if (i > 0) nodes.push(element("br"));
      if (line !== "") nodes.push(line);
    });
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    // Letters begin nothing but an address.
    const skip = /^(?:(?!https?:\/\/)[^\\`*~[])+/.exec(text.slice(at, at + 400))?.[0].length ?? 0;
    const made = skip > 0 ? null : markup(text.slice(at, at + LONGEST), depth);
    if (made) {
      flush();
      nodes.push(...made.nodes);
      at += made.length;
    } else {
      plain += text.slice(at, at + Math.max(1, skip));
      at += Math.max(1, skip);
    }
  }
  flush();
  return nodes;
}

function markup(text, depth) {
  for (const [pattern, make] of INLINE) {
    const match = pattern.exec(text);
    if (match) return { nodes: make(match, depth + 1), length: match[0].length };
  }
  return null;
}

const sources = new WeakMap();

// Makes `container` show the text. Blocks that it shows already stay, so that a long reply can grow.
export function renderMarkdown(container, text) {
  const blocks = blocksOf(text);
  blocks.forEach((lines, i) => {
    const source = lines.join("\n");
    const old = container.children[i];
    if (old !== undefined && sources.get(old) === source) return;
    const node = blockNode(lines, 0);
    sources.set(node, source);
    if (old === undefined) container.append(node);
    else old.replaceWith(node);
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
}
