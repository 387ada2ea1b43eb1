/* Classes: add, rename, merge, reorder and describe them, and the guidelines. A change is kept by the server before the
   page shows it; labels keep what was said, and count as what the class is now. */
"use strict";

let classesMerged = [];

async function changeClass(body) {
  try {
    const data = await call("/api/classes", { ...me(), ...body, request: random() });
    banner("");
    paint(data.state);
    showClasses(data);
    return true;
  } catch (error) {
    if (error.status === 401) { askToken(); return false; }
    banner(error.status ? sentence(error.message) : "The server does not answer; nothing was changed.", 6000);
    paint(state);
    loadClasses();
    return false;
  }
}

async function loadClasses() {
  const data = await call("/api/classes").catch(() => null);
  if (data && state) showClasses(data);
}

function showClasses(data) {
  classesMerged = data.merged;
  const focus = document.activeElement?.dataset?.field;
  $("class-list").replaceChildren(...state.classes.map(classRow));
  $("class-merged").replaceChildren(...data.merged.map((name) => {
    const button = made("button", `Take back the merge of ${name}`, "act");
    button.addEventListener("click", () => changeClass({ kind: "split", name }));
    return button;
  }));
  $("class-history").replaceChildren(...data.changes.map((c) => made("li", `${c.at.slice(0, 16).replace("T", " ")}, ${c.who}: ${told(c)}`)));
  if (document.activeElement !== $("guidelines-text")) $("guidelines-text").value = state.guidelines;
  if (focus) document.querySelector(`[data-field="${CSS.escape(focus)}"]`)?.focus();
}

const told = (c) => ({ add: `${c.name} added`, rename: `${c.name} is now ${c.to}`, merge: `${c.name} merged into ${c.to}`, split: `the merge of ${c.name} taken back`, order: `order ${(c.names || []).join(", ")}`, describe: `${c.name} described`, guidelines: "guidelines written" }[c.kind]);

function classRow(c, n) {
  const li = made("li"), field = (tag, what, value, change, type) => {
    const node = made(tag);
    if (type) node.type = type;
    if (value !== undefined) node.value = value;
    node.dataset.field = `${what} ${n}`;
    node.setAttribute("aria-label", `${what} of ${c.name}`);
    node.addEventListener("change", () => change(node.value));
    return node;
  };
  const describe = (what) => changeClass({ kind: "describe", name: c.name, colour: c.colour, key: c.own_key || "", guidance: c.guidance, ...what });
  const shade = field("input", "Colour", colour(c.name), (v) => describe({ colour: v }), "color");
  const name = field("input", "Name", c.name, (v) => { if (v.trim() !== c.name) changeClass({ kind: "rename", name: c.name, to: v.trim() }); });
  const key = field("input", "Key", c.keys[0] || "", (v) => describe({ key: v.trim() }));
  key.maxLength = 1;
  key.className = "key";
  const guidance = field("input", "Guidance", c.guidance, (v) => describe({ guidance: v.trim() }));
  guidance.placeholder = "A line of guidance";
  guidance.maxLength = 500;
  const move = (to, sign, what) => {
    const button = made("button", sign, "act");
    button.disabled = to < 0 || to >= state.classes.length;
    button.setAttribute("aria-label", `Move ${c.name} ${what}`);
    button.addEventListener("click", () => {
      const names = state.classes.map((k) => k.name);
      names.splice(to, 0, names.splice(n, 1)[0]);
      changeClass({ kind: "order", names });
    });
    return button;
  };
  const merge = field("select", "Merge", undefined, (to) => {
    if (!to) return;
    if (confirm(`Merge ${c.name} into ${to}? Its ${c.count} ${c.count === 1 ? "label counts" : "labels count"} as ${to} then. It can be taken back.`)) changeClass({ kind: "merge", name: c.name, to });
    else merge.value = "";
  });
  options(merge, ["", ...state.classes.map((k) => k.name).filter((k) => k !== c.name)], "merge into…");
  const moves = made("span", "", "moves");
  moves.append(move(n - 1, "↑", "up"), move(n + 1, "↓", "down"));
  li.append(shade, name, key, guidance, made("span", `${c.count} labelled`, "small"), moves, merge);
  return li;
}

$("class-add").addEventListener("submit", async (event) => {
  event.preventDefault();
  const name = $("class-new").value.trim();
  if (name && await changeClass({ kind: "add", name })) { $("class-new").value = ""; $("class-new").focus(); }
});
$("guidelines-text").addEventListener("input", () => $("guidelines-preview").replaceChildren(...markdown($("guidelines-text").value)));
$("guidelines-text").addEventListener("change", () => { if ($("guidelines-text").value !== state.guidelines) changeClass({ kind: "guidelines", guidance: $("guidelines-text").value }); });

/* Markdown as nodes, never as HTML: headings, lists, quotes, code, emphasis, and links to http and https. */

function markdown(text) {
  const out = [], lines = text.replace(/\r/g, "").split("\n");
  for (let n = 0; n < lines.length;) {
    const line = lines[n], heading = /^(#{1,4})\s+(.*)$/.exec(line), item = /^\s*(?:([-*])|\d+[.)])\s+(.*)$/.exec(line);
    if (!line.trim()) n += 1;
    else if (/^```/.test(line)) {
      const code = [];
      for (n += 1; n < lines.length && !/^```/.test(lines[n]); n += 1) code.push(lines[n]);
      n += 1;
      const pre = made("pre");
      pre.append(made("code", code.join("\n")));
      out.push(pre);
    } else if (heading) { out.push(inline(made(`h${Math.min(6, heading[1].length + 2)}`), heading[2])); n += 1; }
    else if (item) {
      const list = made(item[1] ? "ul" : "ol");
      for (let found; n < lines.length && (found = /^\s*(?:[-*]|\d+[.)])\s+(.*)$/.exec(lines[n])); n += 1) list.append(inline(made("li"), found[1]));
      out.push(list);
    } else if (/^>\s?/.test(line)) {
      const said = [];
      for (; n < lines.length && /^>\s?/.test(lines[n]); n += 1) said.push(lines[n].replace(/^>\s?/, ""));
      out.push(inline(made("blockquote"), said.join(" ")));
    } else {
      const said = [];
      for (; n < lines.length && lines[n].trim() && !/^(#{1,4}\s|```|>|\s*([-*]|\d+[.)])\s)/.test(lines[n]); n += 1) said.push(lines[n]);
      if (!said.length) { said.push(lines[n]); n += 1; }
      out.push(inline(made("p"), said.join(" ")));
    }
  }
  out.forEach((node) => { node.dir = "auto"; });
  return out;
}

function inline(node, text) {
  const part = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*|_([^_]+)_|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;
  let at = 0;
  for (const found of text.matchAll(part)) {
    node.append(text.slice(at, found.index));
    const [, code, strong, em, em2, words, address] = found;
    if (words !== undefined) {
      const link = made("a", words);
      link.href = address;
      link.target = "_blank";
      link.rel = "noopener noreferrer";
      node.append(link);
    } else node.append(made(code !== undefined ? "code" : strong !== undefined ? "strong" : "em", code ?? strong ?? em ?? em2));
    at = found.index + found[0].length;
  }
  node.append(text.slice(at));
  return node;
}

let guidelinesShown = null;
function guidelines(text) {
  if (text === guidelinesShown) return;
  guidelinesShown = text;
  $("guidelines").hidden = !text;
  $("guidelines-body").replaceChildren(...markdown(text));
  $("guidelines-preview").replaceChildren(...markdown(text));
}

views.classes = { open: loadClasses, actionOf: () => null };
