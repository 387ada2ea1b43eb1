/* Classes: add, rename, merge, reorder and describe them, and the guidelines. A change is kept by the server before the
   page shows it; labels keep what was said, and count as what the class is now. */
"use strict";

let classChanges = [];  // newest first
let changing = Promise.resolve();

/* One change after the other: ``about`` says what is to be changed when its turn has come. */
const changeClass = (about) => (changing = changing.then(() => sendChange(about())));

async function sendChange(body) {
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

/* What a class is called now that had a name after change number ``seq``. */
const calledNow = (name, seq) => classChanges.filter((c) => c.kind === "rename" && c.seq > seq).reduceRight((now, c) => (c.name === now ? c.to : now), name);

/* All rows anew, but for the field in use: it stays where it is with what is typed in it, its selection too. */
function drawClasses() {
  const rows = state.classes.map(classRow), list = $("class-list"), active = document.activeElement, old = active?.closest("#class-list > li");
  const at = old ? rows.findIndex((li) => li.dataset.name === calledNow(old.dataset.name, Number(old.dataset.seq))) : -1;
  const field = at >= 0 && active.dataset.field, fresh = field && rows[at].querySelector(`[data-field="${field}"]`);
  if (!fresh || !active.matches("input")) {
    list.replaceChildren(...rows);
    return fresh && fresh.focus();
  }
  for (const li of [...list.children]) if (li !== old) li.remove();
  for (const node of [...old.children]) if (node !== active) node.remove();
  const nodes = [...rows[at].children], k = nodes.indexOf(fresh);
  active.before(...nodes.slice(0, k));
  active.after(...nodes.slice(k + 1));
  active.setAttribute("aria-label", fresh.getAttribute("aria-label"));
  if (active.value === active.dataset.was) active.value = fresh.value;
  active.dataset.was = fresh.dataset.was;
  Object.assign(old.dataset, rows[at].dataset);
  old.before(...rows.slice(0, at));
  old.after(...rows.slice(at + 1));
}

function showClasses(data) {
  classChanges = data.changes;
  drawClasses();
  $("class-merged").replaceChildren(...data.merged.map((name) => {
    const button = made("button", `Take back the merge of ${name}`, "act");
    button.addEventListener("click", () => changeClass(() => ({ kind: "split", name })));
    return button;
  }));
  $("class-history").replaceChildren(...data.changes.map((c) => made("li", `${here(c.at)}, ${c.who}: ${told(c)}`)));
  if (document.activeElement !== $("guidelines-text")) $("guidelines-text").value = state.guidelines;
}

const told = (c) => ({ add: `${c.name} added`, rename: `${c.name} is now ${c.to}`, merge: `${c.name} merged into ${c.to}`, split: `the merge of ${c.name} taken back`, order: `order ${(c.names || []).join(", ")}`, describe: `${c.name} described`, guidelines: "guidelines written" }[c.kind]);

function classRow(c, n) {
  const li = made("li"), seq = classChanges[0]?.seq ?? 0, field = (tag, what, value, change, type) => {
    const node = made(tag);
    if (type) node.type = type;
    if (value !== undefined) node.value = value;
    Object.assign(node.dataset, { field: what, was: node.value });
    node.setAttribute("aria-label", `${what} of ${c.name}`);
    node.addEventListener("change", () => change(node.value));
    return node;
  };
  Object.assign(li.dataset, { name: c.name, seq });
  const now = () => state.classes.find((k) => k.name === calledNow(c.name, seq)) || c;
  const describe = (what) => changeClass(() => { const { name, colour, own_key: key, guidance } = now(); return { kind: "describe", name, colour, key, guidance, ...what }; });
  const shade = field("input", "Colour", colour(c.name), (v) => describe({ colour: v }), "color");
  const name = field("input", "Name", c.name, (v) => { if (v.trim() !== now().name) changeClass(() => ({ kind: "rename", name: now().name, to: v.trim() })); });
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
    button.dataset.field = `Move ${what}`;
    button.addEventListener("click", () => changeClass(() => {
      const names = state.classes.map((k) => k.name), at = names.indexOf(now().name);
      names.splice(at + to - n, 0, names.splice(at, 1)[0]);
      return { kind: "order", names };
    }));
    return button;
  };
  const merge = field("select", "Merge", undefined, (to) => {
    merge.value = "";
    if (to && confirm(`Merge ${c.name} into ${to}? Its ${c.count} ${c.count === 1 ? "label counts" : "labels count"} as ${to} then. It can be taken back.`)) changeClass(() => ({ kind: "merge", name: now().name, to }));
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
  if (!name || !(await changeClass(() => ({ kind: "add", name }))) || $("class-new").value.trim() !== name) return;  // another is being typed
  $("class-new").value = "";
  if (!document.activeElement?.matches("input, textarea, select")) $("class-new").focus();
});
$("guidelines-text").addEventListener("input", () => $("guidelines-preview").replaceChildren(...markdown($("guidelines-text").value)));
$("guidelines-text").addEventListener("change", () => { if ($("guidelines-text").value !== state.guidelines) { const guidance = $("guidelines-text").value; changeClass(() => ({ kind: "guidelines", guidance })); } });

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
