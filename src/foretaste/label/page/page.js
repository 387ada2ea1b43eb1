/* The labelling page. Two items are held: the one on the screen and the next, whose picture is loaded already. A key
   shows the next at once and sends the answer; the item after it comes with the reply, so it knows of the answer.
   Answers wait in an outbox that survives a reload, and are sent in order until the server has acknowledged them.
   Keys and clicks are for the item that the person has seen: see "Whether an answer counts". */
"use strict";

const $ = (id) => document.getElementById(id);
const LONG_NAME = 13;      // letters of a class that has a line for itself in the panels
const PALETTE = ["#0d9488", "#d97706", "#6366f1", "#db2777", "#65a30d", "#0284c7", "#b45309", "#9333ea", "#dc2626", "#4d7c0f"];
const random = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");

const tab = sessionStorage.getItem("foretaste-tab") || random();
sessionStorage.setItem("foretaste-tab", tab);
let queue = [];            // items to answer; the first is on the screen
let outbox = JSON.parse(sessionStorage.getItem("foretaste-outbox") || "[]");
let state = null;
let revising = null;       // an item of the past that is on the screen instead
let visit = null;          // from which view it was opened: { view, answered }; its answer leads back there
let busy = false;          // a request of the outbox is under way
let finished = false;
let given = 0;             // answers and undos so far
let recalling = 0;         // items of the past that are on their way
const loaded = new Map();  // address of a picture → { image, done, ok }; ok is undefined until it is decoded

/* Speaking to the server */

async function call(path, body) {
  const init = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  const reply = await fetch(path, { ...init, credentials: "same-origin", cache: "no-store" });
  const data = await reply.json().catch(() => ({ error: `the server answered ${reply.status}` }));
  if (!reply.ok) throw Object.assign(new Error(data.error || `the server answered ${reply.status}`), { status: reply.status });
  return data;
}

const me = () => ({ tab, who: $("who").value.trim() || "me" });

async function logIn(token) {
  await call("/api/login", { token });
}

function askToken(message) {
  $("login-error").textContent = message || "";
  if (!$("login").open) $("login").showModal();
}

/* Answers */

const SAID = { skip: "skipped", unsure: "not sure", ignore: "set aside" };

function give(kind, label) {
  if (!isOpen()) return early();
  $("early").hidden = true;
  const item = revising || queue[0];
  const entry = { path: "/api/answer", body: { ...me(), item: item.item, kind, request: random() } };
  if (label !== undefined) entry.body.label = label;
  if (revising && label !== undefined) entry.body.kind = "relabel";
  press(kind, label);
  say(label === undefined ? sentence(SAID[kind]) : `${words(label)}.`);
  if (revising) revising = null; else queue.shift();
  visit?.answered(entry);
  post(entry);
  show("answered");
  if (visit) openView(visit.view);
}

function undo() {
  revising = visit = null;
  press("undo");
  post({ path: "/api/undo", body: { ...me(), request: random() } });
  show("answered");
}

function post(entry) {
  given += 1;
  outbox.push(entry);
  keepOutbox();
  send();
}

const keepOutbox = () => sessionStorage.setItem("foretaste-outbox", JSON.stringify(outbox));

async function send() {
  if (busy) return;
  busy = true;
  while (outbox.length) {
    const entry = outbox[0];
    try {
      const data = await call(entry.path, entry.body);
      outbox.shift();
      keepOutbox();
      banner("");
      take(data, entry);
    } catch (error) {
      if (error.status === 401) { askToken(); break; }
      if (error.status && (error.status < 500 || entry.path === "/api/grid")) {  // refused for good; a wall comes back
        outbox.shift();
        forgetUndo(entry);
        keepOutbox();
        banner(sentence(error.message), 4000);
        if (entry.from) views[entry.from].refused?.(entry, error);
        await refill();
        continue;
      }
      const waits = outbox.length === 1 ? "1 answer waits here and is" : `${outbox.length} answers wait here and are`;
      banner(`${error.status ? sentence(error.message) : "The server does not answer."} ${waits} sent again by itself.`);
      setTimeout(send, 1000);
      break;
    }
  }
  busy = false;
}

/* The undo that was pressed for an answer which is refused: it would take back another one. */
function forgetUndo(refused) {
  let open = 1;
  const weighs = (e) => ({ "/api/undo": -1, "/api/reopen": 0 }[e.path] ?? 1);
  const at = weighs(refused) > 0 ? outbox.findIndex((e) => (open += weighs(e)) === 0) : -1;
  if (at >= 0) outbox.splice(at, 1);
}

function take(data, entry) {
  const waiting = new Set(outbox.map((e) => e.body.item));
  if (data.items) {
    const old = new Map(queue.map((i) => [i.item, i]));
    const fresh = data.items.filter((i) => !waiting.has(i.item));
    queue = fresh.map((i) => Object.assign(old.get(i.item) || {}, i));
    finished = data.items.length === 0;
  }
  if (entry.from) views[entry.from].took?.(data, entry);
  if (entry.path === "/api/undo" && data.wall) {
    if (!entry.from) { banner(wallBack(data.wall), 8000); say(wallBack(data.wall)); }
  } else if (entry.path === "/api/undo" && entry.from !== "grid" && !(entry.from && data.item.answer && data.item.answer.kind !== "skip")) {
    queue = [data.item, ...queue.filter((i) => i.item !== data.item.item)];
    finished = false;
    say("Taken back.");
  }
  paint(data.state);
  show(entry.path === "/api/undo" ? "asked" : "late");
  recent();
}

async function refill(again = false) {
  const before = given;
  try {
    const data = await call("/api/next", { ...me(), again });
    banner("");
    if (given !== before) delete data.items;  // it may name what has been answered since; the answer's reply has the next
    take(data, { path: "/api/next" });
  } catch (error) {
    if (error.status === 401) return askToken();
    banner(error.status ? sentence(error.message) : "The server does not answer. This page tries again by itself.");
    setTimeout(refill, 1500);
  }
}

/* The item */

function load(item) {
  if (!loaded.has(item.picture)) {
    const entry = { image: new Image() };
    entry.image.src = item.picture;
    entry.done = entry.image.decode().then(() => { entry.ok = true; }, () => { entry.ok = false; });
    loaded.set(item.picture, entry);
    if (loaded.size > 40) loaded.delete(loaded.keys().next().value);
  }
  return loaded.get(item.picture);
}

/* Whether an answer counts. A key or a click is meant for what was on the screen when it was pressed. The next item is
   open at once if the person's own answer has brought it, and so is one that was asked for, by undo or from the strip
   of last answers. One that came by itself is not: what is pressed within a moment of it was meant for another. */

const MOMENT = 400;  // milliseconds; nobody sees an item and presses its key in less
let onScreen = null;
let visible = false;        // whether the item on the screen can be seen and has been for a moment
let visibleTimer = 0;
let pressedOn = null;      // the item that was open when the mouse was pressed
let guessed = {};          // the item on the screen and the class that Enter gives
let guessTimer = 0;        // while that class has only just changed

const isOpen = () => onScreen !== null && visible && !recalling && !outbox.some((e) => e.path === "/api/undo");

function lock() {
  document.querySelectorAll("#classes button, #skip, #unsure, #ignore, #keep, #number input").forEach((b) => { b.disabled = !isOpen(); });
}

let earlyTimer = 0;
function early(text = "That came before the item could be seen, and does not count.") {
  if (finished && !onScreen) return;
  clearTimeout(earlyTimer);
  $("early").textContent = text;
  $("early").hidden = false;
  earlyTimer = setTimeout(() => { $("early").hidden = true; }, 2500);
}

/* Shows the item that is due. ``how`` it comes: "answered" if an answer has brought it, "asked" for, or "late". */
function show(how = "late") {
  const item = revising || queue[0];
  queue.slice(0, 2).filter((i) => i.picture).forEach(load);
  $("ribbon").hidden = !(revising || (item && (item.check || item.second)));
  if (revising) {
    const was = revising.answer;
    $("ribbon").textContent = `${was ? sentence(`Was: ${was.label === null ? SAID[was.kind] : words(was.label)}`) : "Was open."} Choose again, or press Escape`;
  } else if (item && item.second) $("ribbon").textContent = "Others answer this one too";
  else if (item && item.check) $("ribbon").textContent = "Drawn at random, to measure accuracy";
  $("leave").hidden = !revising;
  $("leave").textContent = visit ? `Back to ${document.querySelector(`#views [data-view="${visit.view}"]`).textContent}` : "Leave it";
  if (!item) {
    onScreen = null;
    lookAt(null);
    for (const id of ["picture", "text", "cells"]) $(id).hidden = true;
    loadClip(null);
    $("name").textContent = "";
    $("guess").replaceChildren();
    $("reason").textContent = "";
    if (finished && !outbox.length) allDone(); else note("One moment", "The next item is on its way.");
  } else if (onScreen !== item.item) {
    onScreen = item.item;
    visible = false;
    clearTimeout(visibleTimer);
    $("name").textContent = item.item;
    $("note").hidden = true;
    $("picture").hidden = true;
    $("text").hidden = item.text === undefined;
    $("cells").hidden = item.cells === undefined;
    lookAt(item);
    loadClip(item);
    beginAnswer(item);
    if (!item.picture || load(item).ok !== undefined) draw(item, how !== "late");
    else load(item).done.then(() => { if (onScreen === item.item) draw(item, how === "asked"); });
  }
  if (item) guess(item);
  lock();
}

function draw(item, atOnce) {
  if (item.picture) {
    const { image, ok } = load(item);
    $("picture").hidden = !ok;
    if (ok) {
      $("picture").src = image.src;
      $("picture").alt = `Item ${item.item}`;
    } else note("This picture cannot be shown", `Set it aside with ${keyShown(keyOf("ignore"))}, or skip it.`);
  }
  const open = () => { visible = true; lock(); };
  if (atOnce) open(); else visibleTimer = setTimeout(open, MOMENT);
  painted(item);
}

/* The browser's own player: of the clip on the screen, and of no other. */
const players = [$("audio"), $("video")];
function loadClip(item) {
  for (const player of players) {
    player.hidden = item?.media !== player.id;
    if (!player.hidden) { player.src = item.clip; player.setAttribute("aria-label", `Item ${item.item}`); } else if (player.hasAttribute("src")) { player.removeAttribute("src"); player.load(); }
  }
}
function playOrPause() {
  const player = players.find((p) => !p.hidden);
  if (player?.paused) player.play().catch(() => {}); else player?.pause();
}
/* What was pressed inside the player, its slider say, keeps keys to itself; the player as a whole lets them through. */
for (const player of players) for (const what of ["seeked", "play", "pause", "volumechange"]) player.addEventListener(what, () => { if (document.activeElement === player) player.focus({ preventScroll: true }); });
for (const player of players) player.addEventListener("error", () => { if (!player.hidden) { player.hidden = true; note("This clip cannot be played here", `Set it aside with ${keyShown(keyOf("ignore"))}, or skip it.`); } });

/* When an item is on the screen; a benchmark listens. */
function painted(item) {
  requestAnimationFrame(() => document.dispatchEvent(new CustomEvent("item-painted", { detail: item.item })));
}

function guess(item) {
  const shown = item.check || taskKind() === "number" ? [] : taskKind() === "several" ? item.likely || [] : (item.likely || []).slice(0, 3);
  ahead(item);
  $("guess").replaceChildren(...shown.map(({ name, p }) => row(name, p, `${Math.round(100 * p)} %`, colour(name))));
  $("accept").hidden = !shown.length || taskKind() !== "one";
  const sure = shown[0]?.name;
  if (guessed.item !== item.item || guessed.sure !== sure) {
    clearTimeout(guessTimer);
    const settled = () => { guessTimer = 0; $("accept").classList.remove("fresh"); };
    if (guessed.item !== item.item) settled();
    else { guessTimer = setTimeout(settled, MOMENT); $("accept").classList.add("fresh"); }
    guessed = { item: item.item, sure };
  }
  const hidden = document.querySelector(".guess").classList.contains("hidden");
  document.querySelectorAll("#classes button").forEach((b) => b.classList.toggle("likely", !hidden && taskKind() === "one" && b.dataset.name === sure));
  if (item.second) $("reason").textContent = "Several people answer this item. What the others said and what the model thinks are not shown.";
  else if (item.check) $("reason").textContent = "No hint: this one measures accuracy.";
  else if (!shown.length && !(taskKind() === "number" && item.reason)) {
    const phase = state?.model.phase;
    const words = { "features": "No prediction yet: features are being computed. Your answers count already.", "first labels": taskKind() === "one" ? "No prediction yet: it needs answers of two classes." : "No prediction yet: it needs two different answers.", "training": state?.model.answers ? "The prediction of this item is on its way." : "No prediction yet: the first network is being trained. Go on; your answers count already.", "failed": `There is no model (${state?.model.error}). Items come in a random order; labels are kept.` };
    $("reason").textContent = words[phase] || "No prediction yet.";
  } else {
    $("reason").textContent = item.reason?.text || "";
  }
}

function allDone() {
  const parked = state?.parked || 0;
  if (parked) note("The rest was skipped twice", `${state.labelled} of ${state.total} items are labelled. ${parked} ${parked === 1 ? "item was skipped twice and is" : "items were skipped twice and are"} not asked again by itself.`);
  else note("All done", state ? `${state.labelled} of ${state.total} items are labelled.` : "");
  const links = made("div", "", "links");
  if (parked) {
    const again = made("button", "Ask again");
    again.id = "again";
    again.addEventListener("click", () => refill(true));
    links.append(again);
  }
  for (const [kind, words] of [["csv", "CSV"], ["jsonl", "JSON lines"], ["json", "Label Studio"], ["coco", "COCO"], ["predictions", "Predictions"]]) {
    const link = made("a", words);
    link.href = `/api/export/${kind}`;
    link.download = "";
    links.append(link);
  }
  $("note").append(links);
}

function note(title, text) {
  $("note").hidden = false;
  $("note").replaceChildren(made("h3", title), made("p", text));
}

/* The panels */

function paint(next) {
  if (!next) return;
  const looks = (s) => JSON.stringify(s.classes.map(({ count, ...rest }) => rest));
  const classesChanged = !state || looks(state) !== looks(next);
  state = next;
  document.title = `${next.title || "foretaste"} · ${next.labelled}`;
  $("title").textContent = next.title || "foretaste";
  if (classesChanged) { buttons(); drawTask(); }
  guidelines(next.guidelines);
  $("labelled").textContent = next.labelled.toLocaleString();
  $("of").textContent = `of ${next.total.toLocaleString()} labelled`;
  $("bar").max = next.total || 1;
  $("bar").value = next.labelled + next.unsure + next.ignored;
  const parts = [[next.disagree, "on which people disagree"], [next.waiting, "answered by others, for you too"], [next.unsure, "not sure"], [next.ignored, "set aside"], [next.skipped, "skipped"], [next.copies, next.copies === 1 ? "copy, which follows its first" : "copies, which follow their first"]];
  const others = next.people.length - (next.mine ? 1 : 0);
  $("rest").textContent = [...parts.filter(([n]) => n).map(([n, w]) => `${n} ${w}`), others > 0 ? `you: ${next.mine}, with ${others} other ${others === 1 ? "person" : "people"}` : ""].filter(Boolean).join(" · ");
  changed(next.changed);
  model(next.model);
  curve(next.curve);
  balance(next.classes);
  advice(next.advice, next.model);
  if (queue[0] || revising) guess(revising || queue[0]);
}

function buttons() {
  const longest = Math.max(0, ...state.classes.map((c) => c.name.length));
  document.documentElement.style.setProperty("--names", `${longest + 1}ch`);
  document.documentElement.classList.toggle("long-names", longest > LONG_NAME);
  $("classes").classList.toggle("many", state.classes.length > 12);
  $("classes").replaceChildren(...state.classes.map((c) => {
    const button = made("button");
    const keys = made("span", "", "keys");
    keys.append(...c.keys.map((k) => made("kbd", k)));
    button.style.setProperty("--shade", colour(c.name));
    const word = named("span", c.name, "word");
    if (taskKind() === "several") word.append(made("span", "", "ahead"));
    button.append(keys, word);
    button.dataset.name = c.name;
    button.title = c.guidance ? `${c.name}: ${c.guidance}` : c.name;
    button.setAttribute("aria-keyshortcuts", c.keys.join(" "));
    button.addEventListener("click", (event) => (taskKind() === "several" ? toggle(c.name, event) : clicked(event, "label", c.name)));
    return button;
  }));
  classesFound.draw();
  columns();
}

/* As many columns as fit, but no more than the rows need: four buttons where three fit stand as 2 + 2. A name takes at
   most about three lines, and is never cut. */
function columns() {
  if (!state?.classes.length) return;
  const names = state.classes.map((c) => c.name), box = $("classes"), rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const letters = Math.max(...names.map((n) => Math.max(n.length / 3, ...n.split(/[\s_-]/).map((w) => w.length))));
  const keys = getComputedStyle(box.querySelector("kbd")).display === "none" ? 0 : 1.9 * Math.max(...state.classes.map((c) => c.keys.length));
  const gap = parseFloat(getComputedStyle(box).columnGap), least = rem * Math.min(16, Math.max(6.2, keys + 2 + 0.56 * letters));
  const most = Math.max(1, Math.floor((box.clientWidth + gap) / (least + gap)));
  box.style.setProperty("--columns", Math.ceil(names.length / Math.ceil(names.length / most)));
}
new ResizeObserver(columns).observe($("classes"));

function changed(c) {
  if (!c) { $("changed").textContent = ""; return; }
  const most = c.most[0], f = c.followed;
  const also = f ? `${f.count === 1 ? "1 other like it is" : `${f.count.toLocaleString()} others like it are`} now ${words(f.label)}, ${Math.round(100 * f.sure)} % sure. ` : "";
  $("changed").textContent = also + (c.moved === 0 ? "The last answer changed no prediction."
    : `The last answer changed ${c.moved.toLocaleString()} of ${c.of.toLocaleString()} predictions` + (most ? `, ${most.count} from ${words(most.from)} to ${words(most.to)}.` : "."));
}

function model(m) {
  const words = { waiting: "starting", features: "computing features", "first labels": "waits for two classes", training: m.answers ? "training anew" : "first training", ready: "", failed: "no model" }[m.phase];
  $("model").textContent = [m.words, words].filter(Boolean).join(" · ");
  $("model").title = $("model").textContent;
  $("model").classList.toggle("busy", ["features", "training", "waiting"].includes(m.phase));
  $("features").hidden = !(m.phase === "features" && m.total);
  $("features-words").textContent = `Features: ${m.done.toLocaleString()} of ${m.total.toLocaleString()}. Go on labelling; until they are there, items come in a random order.`;
  $("features-bar").value = m.total ? m.done / m.total : 0;
}

function curve(c) {
  c = { ...c, check: c.checked >= 5 ? c.check : [], running: c.running.filter((p) => p[2] >= 10) };  // fewer say nothing
  const last = c.check.at(-1), running = c.running.at(-1);
  $("curve-words").textContent = last ? `${Math.round(100 * last[1])} % on ${c.checked} items drawn at random (95 %: ${Math.round(100 * last[2])} to ${Math.round(100 * last[3])}).${{ several: " An item counts if all its answers are right.", number: " An item counts within a tenth of the scale." }[taskKind()] || ""}` + (running ? ` Dotted: ${Math.round(100 * running[1])} % of the last ${Math.min(running[2], c.window)} questions were guessed before the answer; they are the hard ones.` : "")
    : running ? `Dotted: ${Math.round(100 * running[1])} % of the last ${Math.min(running[2], c.window)} questions were guessed before the answer. They are the hard ones.`
    : "Shown when there is enough to measure.";
  const W = 288, H = 96, L = 26, B = 14, all = [...c.check, ...c.running];
  if (all.length < 2) { $("curve").replaceChildren(); return; }
  const most = Math.max(c.labelled, 2), x = (n) => L + (W - L - 4) * n / most, y = (a) => 4 + (H - B - 4) * (1 - a);
  const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": $("curve-words").textContent });
  for (const a of [0, 0.5, 1]) {
    svg.append(drawn("line", { x1: L, x2: W, y1: y(a), y2: y(a), class: "axis" }));
    const label = drawn("text", { x: L - 4, y: y(a) + 3, "text-anchor": "end" });
    label.textContent = `${100 * a}`;
    svg.append(label);
  }
  const end = drawn("text", { x: W - 4, y: H - 1, "text-anchor": "end" });
  end.textContent = `${most} labels`;
  svg.append(end);
  const path = (points) => points.map((p, k) => `${k ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
  if (c.running.length > 1) svg.append(drawn("path", { d: path(c.running), class: "thin" }));
  if (c.check.length) {
    const up = c.check.map((p) => [p[0], p[3]]), down = c.check.map((p) => [p[0], p[2]]).reverse();
    if (c.check.length > 1) svg.append(drawn("path", { d: path(up) + path(down).replace("M", "L") + "Z", class: "band" }), drawn("path", { d: path(c.check), class: "line" }));
    svg.append(drawn("circle", { cx: x(last[0]), cy: y(last[1]), r: 3.2, class: "end" }));
  }
  $("curve").replaceChildren(svg);
}

function balance(classes, place = $("balance")) {
  const most = Math.max(...classes.map((c) => c.count), 1);
  place.replaceChildren(...classes.map((c) => row(c.name, c.count / most, c.count, colour(c.name))));
}

function advice(a, m) {
  $("stop").textContent = a.stop?.text || "";
  $("stop").className = a.stop?.now ? "now" : "";
  $("drift").textContent = a.retrain?.text || "";
  $("drift").className = a.retrain?.now ? "now" : "";
  $("pool").textContent = a.pool?.text || "";
  $("pool").className = a.pool?.now ? "now" : "";
  $("retrain").className = a.retrain?.now ? "now" : "";
  $("retrain").disabled = m.phase !== "ready";
  $("retrain").textContent = m.phase === "training" ? "Training, in the background…" : "Train the network anew";
  $("advice").hidden = !(a.stop || a.retrain || a.pool) && m.phase !== "training";
}

let recentTimer = 0;
function recent() {
  clearTimeout(recentTimer);
  recentTimer = setTimeout(async () => {
    const data = await call(`/api/recent?${new URLSearchParams({ who: me().who })}`).catch(() => null);
    if (!data) return;
    $("recent").replaceChildren(...data.items.map((r) => {
      const button = made("button");
      if (r.picture) { const img = made("img"); img.src = r.picture; img.alt = ""; button.append(img); } else button.append(made("div", r.text, "words"));
      const said = r.label === null ? SAID[r.kind] : words(r.label);
      button.append(made("span", said.length > 17 ? `${said.slice(0, 7)}…${said.slice(-9)}` : said));
      button.title = `${r.item}: ${said}, by ${r.who}. Press to change`;
      button.setAttribute("aria-label", button.title);
      button.addEventListener("click", () => recall(r.number));
      return button;
    }));
  }, 250);
}

async function recall(number, from = null) {
  recalling += 1;
  lock();
  revising = await call(`/api/item/${number}?${new URLSearchParams({ who: me().who })}`).catch(() => null);
  recalling -= 1;
  visit = revising && from;
  show("asked");
}

function leave() {
  if (visit) return openView(visit.view);
  revising = null;
  show("answered");
}
$("leave").addEventListener("click", () => leave());

/* Views: the desk itself, and pages beside it, each with a script of its own: { open, actionOf, took }. The item on the
   screen stays held meanwhile. */

const views = { label: {} };
const placeOf = (name) => $({ classes: "classes-view" }[name] || name);  // #classes are the buttons
let view = "label";
let person = null;         // whose address this is; null for the owner, or where there are no tokens

function openView(name) {
  const button = document.querySelector(`#views [data-view="${name}"]`);
  if (button.hidden || (person && button.matches(".owners"))) return;
  const back = visit?.view === name;
  if (name !== "label" && visit) { revising = visit = null; show("answered"); }
  view = name;
  for (const other of Object.keys(views)) placeOf(other).hidden = other !== name;
  document.querySelectorAll("#views button").forEach((b) => (b.dataset.view === name ? b.setAttribute("aria-current", "page") : b.removeAttribute("aria-current")));
  views[name].open?.(back);
  if (name === "label") columns();
  atItem();
}
document.querySelectorAll("#views button").forEach((b) => b.addEventListener("click", () => openView(b.dataset.view)));

/* Small things */

function made(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined && text !== "") node.textContent = text;
  if (className) node.className = className;
  return node;
}

/* The name of a class, which may break after _, - and / before it breaks within a word. */
function named(tag, name, className) {
  const node = made(tag, "", className);
  node.append(...name.split(/(?<=[_/-])/).flatMap((part, i) => (i ? [made("wbr"), part] : [part])));
  return node;
}

function drawn(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attributes)) node.setAttribute(k, v);
  return node;
}

function row(name, share, much, shade) {
  const line = made("div", "", "row"), track = made("div", "", "track"), fill = made("i");
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  fill.style.background = shade;
  track.append(fill);
  const what = named("span", name, "what");
  what.title = name;
  line.append(what, track, made("span", String(much), "much"));
  return line;
}

const colour = (name) => {
  const n = Math.max(0, state?.classes.findIndex((c) => c.name === name) ?? 0);
  return state?.classes[n]?.colour || PALETTE[n % PALETTE.length];
};
/* What an undo of a wall took back: class → how many. */
const wallBack = (wall) => `A wall was taken back: ${Object.entries(wall).map(([name, n]) => `${n.toLocaleString()} as ${name}`).join(", ")}.`;
/* A moment of the log as the clock says it here: 2025-03-31 14:05. */
const here = (at) => new Date(new Date(at) - 60_000 * new Date(at).getTimezoneOffset()).toISOString().slice(0, 16).replace("T", " ");
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

let bannerTimer = 0;
function banner(text, milliseconds) {
  clearTimeout(bannerTimer);
  if (!text && $("banner").dataset.sticky) return;
  $("banner").textContent = text;
  $("banner").hidden = !text;
  delete $("banner").dataset.sticky;
  if (milliseconds) {
    $("banner").dataset.sticky = "1";
    bannerTimer = setTimeout(() => { delete $("banner").dataset.sticky; banner(""); }, milliseconds);
  }
}

function say(text) { $("live").textContent = `${text} ${state ? state.labelled : 0} labelled.`; }

function press(kind, label) {
  const button = label === undefined ? $(kind) : [...document.querySelectorAll("#classes button")].find((b) => b.dataset.name === label);
  if (!button) return;
  button.classList.add("pressed");
  setTimeout(() => button.classList.remove("pressed"), 140);
}

/* Keys mean what the page says, wherever the focus is. Only typing is typing, and a button that was reached with Tab is
   pressed with Enter or Space; a player keeps those it knows. Whatever was pressed, the focus is at the item again. */

const atItem = () => (view === "label" ? $("stage") : placeOf(view)).focus({ preventScroll: true });
const PLAYER_KEYS = [" ", "arrowleft", "arrowright", "arrowup", "arrowdown", "home", "end"];
const inDialog = (event) => Boolean(event.target.closest?.("dialog"));

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.isComposing || inDialog(event)) return;
  const key = event.key.toLowerCase();
  const place = placeKey(key, event);
  if (place) { event.preventDefault(); return place === "keys" ? openKeys() : openView(place); }
  if (event.target.matches("input, textarea, select")) {
    if (key === "enter" && event.target.form?.id === "class-add") return;
    if ((key === "enter" && event.target.matches("input")) || key === "escape") { event.preventDefault(); event.target.blur(); atItem(); }
    return;
  }
  if (event.target.matches("audio, video") && PLAYER_KEYS.includes(key)) return;
  const action = actionOf(key, event.ctrlKey || event.metaKey);
  if (!action || ((key === "enter" || key === " ") && event.target.matches(":is(button, a, summary):focus-visible:not([data-tile])"))) return;
  event.preventDefault();
  atItem();
  if (!event.repeat || key.startsWith("arrow")) action();
});

/* Keys that lead elsewhere: F-keys also while one types, and no key that a class has. */
function placeKey(key, event) {
  if (event.ctrlKey || event.metaKey || (!/^f\d+$/.test(key) && (event.target.matches("input, textarea, select") || state?.classes.some((c) => c.keys.includes(key))))) return null;
  return ["keys", "review", "grid", "classes", "overview"].find((name) => keyOf(name) === key);
}

function actionOf(key, withControl) {
  if (view !== "label") return views[view].actionOf(key, withControl) || (key === "escape" ? () => openView("label") : null);
  if (withControl) return key === "z" ? undo : null;
  if (key === "escape") return revising && leave;
  const answer = answerKey(key);
  if (answer) return answer;
  const pan = panKey(key);
  if (pan) return pan;
  const found = state?.classes.find((c) => c.keys.includes(key));
  if (found) return () => give("label", found.name);
  const action = Object.keys(KEYS).find((a) => keyOf(a) === key);
  return action && ACTIONS[action];
}

/* What keys do, beside those of classes: set by whoever uses them (look.js), and kept in this browser. */
const KEYS = { undo: "backspace", skip: " ", unsure: "?", ignore: "delete", accept: "enter", zoomIn: "+", zoomOut: "-", zoomOff: "=", darker: "[", brighter: "]", find: "/", findClass: ".", play: ">", keys: "f1", review: "f2", grid: "f4", classes: "f8", overview: "f9" };
const ownKeys = JSON.parse(localStorage.getItem("foretaste-keys") || "{}");
const keyOf = (action) => ownKeys[action] || KEYS[action];
const ACTIONS = {
  undo, accept, skip: () => give("skip"), unsure: () => give("unsure"), ignore: () => give("ignore"), zoomIn: () => zoomBy(1.5), zoomOut: () => zoomBy(1 / 1.5), zoomOff: () => zoomOff(), darker: () => light(-0.2), brighter: () => light(0.2),
  play: playOrPause, find: () => { if (!$("find").hidden) $("find-words").select(); },
  findClass: () => { if (!$("class-finder").hidden) $("class-find").select(); },
};

function accept() {
  const item = revising || queue[0];
  const first = item && !item.check && !document.querySelector(".guess").classList.contains("hidden") ? item.likely?.[0] : null;
  if (first && guessTimer) early(`The model has only just changed its mind to ${first.name}: nothing was kept.`);
  else if (first) give("label", first.name);
}

/* A mouse leaves no focus on a button, and no click is for an item that was not there when the button was pressed. */
document.addEventListener("pointerdown", () => { pressedOn = isOpen() ? onScreen : null; }, true);
document.addEventListener("mousedown", (event) => {
  if (inDialog(event) || !event.target.closest("button, a, summary")) return;
  event.preventDefault();
  atItem();
});
document.addEventListener("click", (event) => { if (!inDialog(event) && event.target.closest("button")) atItem(); });

function clicked(event, kind, label) {
  if (event.detail && pressedOn !== onScreen) early(); else give(kind, label);  // detail is 0 for a key
}

for (const kind of ["skip", "unsure", "ignore"]) $(kind).addEventListener("click", (event) => clicked(event, kind));
$("undo").addEventListener("click", undo);
$("retrain").addEventListener("click", async () => paint((await call("/api/retrain", me()).catch((e) => { banner(sentence(e.message), 4000); return {}; })).state));
$("hide").addEventListener("click", () => hide(!document.querySelector(".guess").classList.contains("hidden")));
function hide(on) {
  document.querySelector(".guess").classList.toggle("hidden", on);
  $("hide").textContent = on ? "show" : "hide";
  $("hide").setAttribute("aria-pressed", String(on));
  localStorage.setItem("foretaste-hide", on ? "1" : "");
  if (revising || queue[0]) guess(revising || queue[0]);
}
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("foretaste-theme", document.documentElement.dataset.theme);
});
$("who").value = localStorage.getItem("foretaste-who") || "me";
$("who").addEventListener("change", () => { localStorage.setItem("foretaste-who", $("who").value.trim()); refill(); recent(); });
$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try { await logIn($("token").value.trim()); $("token").value = ""; $("login").close(); atItem(); start(); } catch (error) { askToken(sentence(error.message)); }
});

/* Whether the model has yet to say something about an item. */
const lacks = (item) => !item.second && !item.check && ((taskKind() !== "number" && !item.likely?.length) || (taskKind() !== "one" && !item.reason));

/* Signs of life: items stay ours, panels stay fresh. What a closed tab held returns to the queue when they end. */
async function alive() {
  if (document.visibilityState === "visible" && !busy && state) {
    const before = given, data = await call("/api/alive", me()).catch(() => null);
    if (data && !busy && given === before) {
      paint(data.state);
      if (queue[0] && !data.held.includes(queue[0].item)) refill();  // it was given to somebody else
      else if (queue[0] && lacks(queue[0]) && data.state.model.phase === "ready") refill();
      else if (!queue.length && (data.state.left > data.state.parked || data.state.waiting)) refill();
    }
  }
  setTimeout(alive, state && ["features", "training", "waiting", "first labels"].includes(state.model.phase) ? 700 : 3000);
}
async function start() {
  if (location.hash.startsWith("#token=")) {
    const token = decodeURIComponent(location.hash.slice(7));
    history.replaceState(null, "", location.pathname);
    try { await logIn(token); } catch (error) { return askToken(sentence(error.message)); }
  }
  const theme = localStorage.getItem("foretaste-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  hide(Boolean(localStorage.getItem("foretaste-hide")));
  person = (await call("/api/me").catch(() => ({ person: null }))).person;
  document.documentElement.classList.toggle("one-person", Boolean(person));
  $("who").readOnly = Boolean(person);
  if (person) $("who").value = person;
  document.querySelectorAll("option.owners").forEach((o) => { o.hidden = o.disabled = Boolean(person); });
  if (outbox.length) await send();
  await refill();
  recent();
}

document.addEventListener("DOMContentLoaded", () => { start(); setTimeout(alive, 1500); });  // all scripts are there
