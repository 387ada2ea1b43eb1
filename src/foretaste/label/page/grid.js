/* A wall of items that the model says are of one class, that are like an item, or that have some words. Press the wrong
   ones, or point at one and press the key of its class; one key accepts the rest. Each is an answer of its own, and all
   are taken back together. The wall grows when its end is on the screen; what came so counts once it has been seen. */
"use strict";

let wall = { items: [], label: "", like: "" };
let wrongOnes = new Set();
let namedOnes = new Map();  // tile → the class that was named for it
let tile = 0;
let pointedAt = -1;         // the tile that the mouse has moved to since the wall was drawn
let wallNews = "";          // what became of the last wall, or was taken back
const calledWrong = new Map();  // class → numbers of items that are not shown as that again
const MOST_TILES = 1000;    // on one wall
let unseen = new Set();     // tiles that came later and have not been on the screen
let growing = false;
let gridAsked = 0;          // the latest wall; replies for earlier ones are dropped
const tilesSeen = new IntersectionObserver((entries) => {
  const here = entries.filter((e) => e.isIntersecting).map((e) => Number(e.target.dataset.tile));
  if (here.filter((n) => unseen.delete(n)).length) countGrid();
  if (here.includes(wall.items.length - 1)) growGrid();
});

async function loadGrid(wanted = {}, news = "") {
  if (wall.sent) {  // it may come back
    $("grid-class").value = wall.label;
    $("grid-find").value = wall.find;
    return;
  }
  const label = wanted.label ?? ($("grid-class").value || state.classes[0].name), like = wanted.like || "", find = like ? "" : (wanted.find ?? "");
  $("grid-find").value = find;
  options($("grid-class"), state.classes.map((c) => c.name), "");
  $("grid-class").value = label;
  wallNews = news;
  $("grid-words").textContent = `${news} Looking…`.trim();
  const asked = ++gridAsked, data = await askGrid({ label, like, find });
  if (asked !== gridAsked) return;
  if (data.error) {
    if (data.error.status === 401) return askToken();
    $("grid-words").textContent = data.error.status ? sentence(data.error.message) : "The server does not answer. Choose the class again.";
    return;
  }
  wall = { items: data.items, label, like, find, left: data.left, looked: data.looked, sent: "", back: false };
  unseen = new Set();
  wrongOnes = new Set();
  namedOnes = new Map();
  tile = 0;
  pointedAt = -1;
  drawGrid();
  $("grid-words").textContent = gridSummary(data.ready);
  if (wall.looked) followPass(asked);
}

/* A new network goes through a large pool in the background. What is on the wall stays; more comes at its end. */
async function followPass(asked) {
  while (wall.looked) {
    await new Promise((done) => setTimeout(done, 1000));
    const now = await call("/api/state").catch(() => null);
    if (asked !== gridAsked || view !== "grid") return;
    if (now) wall.looked = now.model.looked;
    if (!wall.items.length && !wall.looked) return loadGrid(wall);
    $("grid-words").textContent = gridSummary(true);
  }
}

function gridSummary(ready) {
  const news = wallNews && `${wallNews} `;
  if (!wall.looked) return news + wallWords(ready);
  const [done, of] = wall.looked.map((n) => n.toLocaleString());
  return `${news}${wall.items.length ? `${wallWords(ready)} ` : ""}The new network has looked at ${done} of ${of} items so far.`;
}

function wallWords(ready) {
  const { label, like, find, left, items } = wall, many = items.length;
  if (!many) return find ? `No open item has ${find}.` : !ready ? "No predictions yet: answer items of two classes first." : `Nothing is left that the model calls ${label}.`;
  return `${like ? `${many} items like ${like}` : find ? `${many} of ${left.toLocaleString()} open items with ${find}` : `${many} of ${left.toLocaleString()} that the model calls ${label}`}. ${find ? "Press those of one class, and a class key" : "Press the wrong ones"}, then ${keyShown(keyOf("accept"))}${find ? "" : `: the rest is ${label}`}.`;
}

/* Open items that are not on the wall already. */
function askGrid({ label, like, find }, there = []) {
  const wrong = [...((!find && calledWrong.get(label)) || [])].slice(-(2000 - there.length));
  return call(`/api/grid?${new URLSearchParams({ label, like, find, without: [...wrong, ...there].join(",") })}`).catch((e) => ({ error: e }));
}

async function growGrid() {
  const { label, like, find, left, items } = wall, asked = gridAsked;
  if (growing || wall.sent || items.length >= Math.min(left, MOST_TILES)) return;
  growing = true;
  const data = await askGrid({ label, like, find }, items.map((r) => r.number)).finally(() => { growing = false; });
  if (asked !== gridAsked || wall.items !== items || data.error || !data.items.length) return;
  const first = items.length;
  items.push(...data.items);
  data.items.forEach((_, k) => unseen.add(first + k));
  $("grid-wall").append(...data.items.map((r, k) => gridTile(r, first + k)));
  for (let n = first; n < items.length; n += 1) markTile(n);
  $("grid-words").textContent = gridSummary(true);
  countGrid();
}

/* Of a class, what is not marked is accepted; of words that were found, what is. */
const accepted = (n) => !namedOnes.has(n) && !unseen.has(n) && wrongOnes.has(n) === Boolean(wall.find);

function drawGrid() {
  tilesSeen.disconnect();
  $("grid-wall").classList.toggle("pick", Boolean(wall.find));
  $("grid-wall").classList.toggle("texts", Boolean(wall.items.length && !wall.items[0].picture));
  $("grid-wall").inert = Boolean(wall.sent);
  $("grid-wall").replaceChildren(...wall.items.map(gridTile));
  markGrid();
}

function gridTile(r, n) {
  const button = made("button");
  if (r.picture) { const img = made("img"); img.loading = "lazy"; img.src = r.picture; img.alt = ""; button.append(img); } else button.append(Object.assign(made("span", r.text, "words"), { dir: "auto" }));
  button.append(made("small", !r.likely ? r.item : `${r.likely} ${percent(r.p)}${r.follow ? ` · ${r.follow} follow${r.follow === 1 ? "s" : ""}` : ""}`));
  const closer = made("span", "⤢", "closer");
  closer.title = "Look closely (+)";
  closer.setAttribute("aria-hidden", "true");
  button.append(closer);
  button.addEventListener("click", (event) => {
    tile = n;
    if (event.target === closer) lookCloser(n);
    else if (!longPressed) toggleWrong(n);
  });
  button.addEventListener("pointermove", () => { if (pointedAt !== n) { pointedAt = n; markTiles(); } });
  button.addEventListener("pointerleave", () => { pointedAt = -1; markTiles(); });
  button.dataset.tile = n;
  tilesSeen.observe(button);
  return button;
}

let marked = [];  // tiles whose marks may be of before

function markTile(n) {
  const b = $("grid-wall").children[n], r = wall.items[n], said = namedOnes.get(n);
  if (!b || !r) return;
  b.setAttribute("aria-pressed", String(wrongOnes.has(n)));
  b.classList.toggle("chosen", n === tile);
  b.classList.toggle("pointed", n === pointedAt && !wall.find);
  if (said) b.dataset.named = said; else delete b.dataset.named;
  b.setAttribute("aria-label", `${calledTile(r)}, ${said || r.likely}`);
  b.tabIndex = n === tile ? 0 : -1;  // Tab reaches the wall once; arrows move in it
}

const calledTile = (r) => shortened(r.text || r.item, 80);

/* For a screen reader: a tile, what the model says of it, and what comes of it. */
function tellTile(n) {
  const r = wall.items[n], said = namedOnes.get(n), on = wrongOnes.has(n);
  const becomes = said ? `named ${said}` : wall.find ? (on ? "chosen" : "not chosen") : on ? "marked as wrong" : "will be accepted";
  $("live").textContent = `${calledTile(r)}, ${r.likely ? `${r.likely} ${percent(r.p)}` : "no prediction"}: ${becomes}.`;
}

/* Under the wall: the classes for the tile that is marked, for those who have no keys, and classes that have none. */
function offerNames() {
  const r = wall.items[tile], on = r && !wall.sent && !wall.find && (wrongOnes.has(tile) || namedOnes.has(tile));
  $("grid-name").hidden = !on;
  if (!on) return;
  $("grid-name-words").textContent = `${calledTile(r)} is`;
  $("grid-name-classes").replaceChildren(...state.classes.filter((c) => c.name !== wall.label).map((c) => {
    const button = named("button", c.name, "act");
    button.dataset.name = c.name;
    button.setAttribute("aria-pressed", String(namedOnes.get(tile) === c.name));
    button.addEventListener("click", () => nameTile(tile, c.name));
    return button;
  }));
  namesFound.clear();
  $("grid-wall").children[tile].scrollIntoView({ block: "nearest" });  // not behind these
}
const namesFound = classFinder("grid-name", $("grid-name-classes"), (name) => nameTile(tile, name));

/* The tiles that the keyboard and the mouse are at now and were at before: a long wall is not marked anew each time. */
function markTiles() {
  for (const n of new Set([...marked, tile, pointedAt])) markTile(n);
  marked = [tile, pointedAt];
}

function markGrid() {
  wall.items.forEach((_, n) => markTile(n));
  marked = [tile, pointedAt];
  countGrid();
}

function countGrid() {
  const rest = wall.items.filter((_, n) => accepted(n)).length;
  $("grid-accept").disabled = Boolean(wall.sent) || (!rest && !namedOnes.size);
  const others = namedOnes.size ? `${rest ? ", " : ""}${namedOnes.size} as you named ${namedOnes.size === 1 ? "it" : "them"}` : "";
  $("grid-accept").querySelector("span").textContent = rest || others ? `Accept ${rest ? `${rest} as ${wall.label}` : ""}${others}` : "Nothing to accept";
  offerNames();
}

function toggleWrong(n) {
  if (!wall.items[n]) return;
  if (!namedOnes.delete(n) && !wrongOnes.delete(n)) wrongOnes.add(n);
  markTile(n);
  markTiles();
  countGrid();
  tellTile(n);
}

/* A class key while the mouse points at an item, or at one that is marked: that is its class. */
function nameTile(n, name) {
  if (name === wall.label) namedOnes.delete(n); else namedOnes.set(n, name);
  wrongOnes.delete(n);
  $("live").textContent = `${wall.items[n].item}: ${name}.`;
  markGrid();
}

function moveTile(by) {
  tile = Math.max(0, Math.min(wall.items.length - 1, tile + by));
  markTiles();
  offerNames();
  if (!wall.items[tile]) return;
  focusTile();
  tellTile(tile);
}

function focusTile() {
  const button = $("grid-wall").children[tile];
  button?.focus({ preventScroll: true });
  button?.scrollIntoView({ block: "nearest" });
}

/* The wall stays until the server has kept it. */
function acceptGrid() {
  if (wall.sent) return;
  const items = wall.items.filter((_, n) => accepted(n)).map((r) => r.item);
  const others = Object.fromEntries([...namedOnes].map(([n, name]) => [wall.items[n].item, name]));
  if (!items.length && !namedOnes.size) return;
  wall.sent = random();
  $("grid-wall").inert = true;
  $("grid-accept").disabled = true;
  $("grid-words").textContent = `Keeping ${(items.length + namedOnes.size).toLocaleString()} answers…`;
  const wrong = wall.find ? [] : [...wrongOnes].map((n) => wall.items[n].number);
  post({ path: "/api/grid", from: "grid", wrong, body: { ...me(), items, label: wall.label, others, request: wall.sent } });
}

/* What the server kept of a wall, and what others took meanwhile. */
function keptWords({ taken }, { body: { items, label, others } }) {
  const kept = (all) => all.filter((item) => !(item in taken)).length, same = kept(items), other = kept(Object.keys(others));
  const lost = (how) => Object.values(taken).filter((t) => t === how).length, answered = lost("answered"), held = lost("held");
  const parts = [
    same + other ? `${same} accepted as ${label}${other ? `, ${other} as other classes` : ""}` : "Nothing was accepted",
    answered && `${answered} ${answered === 1 ? "was" : "were"} answered by others meanwhile`,
    held && `${held} ${held === 1 ? "is" : "are"} on another screen`,
  ];
  return `${parts.filter(Boolean).join("; ")}.`;
}

/* Look closely: the large picture, or the whole text, of one tile. By a key, the small sign on it, or a long press. */

const LONG_PRESS = 500;  // milliseconds
let longPressed = false, pressTimer = 0;

async function lookCloser(n) {
  const r = wall.items[n], place = $("closer-item");
  if (!r || wall.sent) return;
  tile = n;
  markTiles();
  $("closer-name").textContent = r.item;
  $("closer-original").hidden = !r.picture;
  if (r.picture) {
    const size = (name) => r.picture.replace(/small$/, name);
    place.replaceChildren(Object.assign(made("img"), { src: size("large"), alt: `Item ${r.item}` }));
    $("closer-original").href = size("original");
  } else if (r.clip) place.replaceChildren(Object.assign(made(r.media), { src: r.clip, controls: true, ariaLabel: `Item ${r.item}` }));
  else place.replaceChildren(Object.assign(made("p", r.text), { dir: "auto" }));
  tellCloser();
  if (!$("closer").open) $("closer").showModal();
  place.focus();
  place.scrollTop = 0;
  if (r.picture || r.clip) return;
  const whole = await call(`/api/whole/${r.number}`).catch(() => null);
  if (!whole || tile !== n) return;
  const cells = whole.cells && made("dl", "", "cells");
  cells?.append(...whole.cells.flatMap(([k, v]) => [made("dt", k), Object.assign(made("dd", v), { dir: "auto" })]));
  place.replaceChildren(cells || Object.assign(made("p", whole.text), { dir: "auto" }));
}

/* What the tile that is open counts as. */
function tellCloser() {
  const r = wall.items[tile], said = namedOnes.get(tile), on = wrongOnes.has(tile);
  $("closer-words").textContent = [r.likely && `The model: ${r.likely} ${percent(r.p)}`, said ? `named ${said}` : on ? (wall.find ? "chosen" : "marked as wrong") : ""].filter(Boolean).join(" · ");
  $("closer-mark").textContent = wall.find ? "Choose it" : "It is wrong";
  $("closer-mark").setAttribute("aria-pressed", String(on));
  $("closer-back").disabled = tile === 0;
  $("closer-next").disabled = tile === wall.items.length - 1;
}

function markCloser() { toggleWrong(tile); tellCloser(); }
$("closer-back").addEventListener("click", () => lookCloser(tile - 1));
$("closer-next").addEventListener("click", () => lookCloser(tile + 1));
$("closer-mark").addEventListener("click", markCloser);
$("closer-close").addEventListener("click", () => $("closer").close());
$("closer").addEventListener("close", () => { longPressed = false; $("closer-item").replaceChildren(); atItem(); $("grid-wall").children[tile]?.scrollIntoView({ block: "nearest" }); });
$("closer").addEventListener("pointerdown", () => { longPressed = false; });
$("closer").addEventListener("click", (event) => { if (event.target === $("closer") && !longPressed) $("closer").close(); });
$("closer").addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.isComposing) return;
  const key = event.key.toLowerCase(), name = state.classes.find((c) => c.keys.includes(key))?.name;
  if (event.target.matches("audio, video") && PLAYER_KEYS.includes(key)) return;
  if (key === " " && event.target.matches("button, a")) return;
  const action = name && !wall.find ? () => { nameTile(tile, name); tellCloser(); }
    : { arrowleft: () => lookCloser(tile - 1), arrowright: () => lookCloser(tile + 1), [keyOf("skip")]: markCloser, [keyOf("zoomIn")]: () => $("closer").close() }[key];
  if (!action) return;
  event.preventDefault();
  if (!event.repeat) action();
});
$("grid-look").addEventListener("click", () => lookCloser(tile));
$("grid-wall").addEventListener("pointerdown", (event) => {
  const n = Number(event.target.closest("button")?.dataset.tile ?? -1);
  longPressed = false;
  clearTimeout(pressTimer);
  if (event.pointerType === "touch" && n >= 0) pressTimer = setTimeout(() => { longPressed = true; lookCloser(n); }, LONG_PRESS);
});
for (const end of ["pointerup", "pointercancel", "pointerleave"]) $("grid-wall").addEventListener(end, () => clearTimeout(pressTimer));
$("grid-wall").addEventListener("contextmenu", (event) => { if (event.pointerType === "touch" || longPressed) event.preventDefault(); });

const gridColumns = () => getComputedStyle($("grid-wall")).gridTemplateColumns.split(" ").length;
$("grid-class").addEventListener("change", () => {  // of words that were found: what they are
  if (wall.find) { wall.label = $("grid-class").value; markGrid(); } else loadGrid({ label: $("grid-class").value });
  atItem();
});
$("grid-find").addEventListener("change", () => loadGrid({ find: $("grid-find").value.trim() }));
$("grid-like-tile").addEventListener("click", () => { const r = wall.items[tile]; if (r) loadGrid({ like: r.item, label: r.likely || wall.label }); });
$("grid-turn").addEventListener("click", () => { wrongOnes = new Set(wall.items.map((_, n) => n).filter((n) => !wrongOnes.has(n))); markGrid(); });
$("grid-like").addEventListener("click", () => { const item = revising || queue[0]; if (item) loadGrid({ like: item.item, label: item.likely?.[0]?.name }); });
$("grid-accept").addEventListener("click", acceptGrid);
$("grid-undo").addEventListener("click", () => undoGrid());
const undoGrid = () => post({ path: "/api/undo", from: "grid", body: { ...me(), request: random() } });

views.grid = {
  open: () => { if (!wall.back) loadGrid(); },
  actionOf(key, withControl) {
    if (withControl) return key === "z" ? undoGrid : null;
    if (wall.sent) return key === keyOf("undo") ? undoGrid : null;
    const found = state?.classes.find((c) => c.keys.includes(key));
    const at = pointedAt >= 0 ? pointedAt : wrongOnes.has(tile) ? tile : -1;
    if (found && wall.items[at] && !wall.find) return () => nameTile(at, found.name);
    if (found) return () => (wall.find ? ($("grid-class").value = wall.label = found.name, markGrid()) : loadGrid({ label: found.name }));
    return {
      arrowright: () => moveTile(1), arrowleft: () => moveTile(-1), arrowdown: () => moveTile(gridColumns()), arrowup: () => moveTile(-gridColumns()),
      [keyOf("skip")]: () => { toggleWrong(tile); focusTile(); }, [keyOf("accept")]: acceptGrid, [keyOf("undo")]: undoGrid, [keyOf("zoomIn")]: () => lookCloser(pointedAt >= 0 ? pointedAt : tile),
      [keyOf("findClass")]: $("grid-name").hidden || $("grid-name-finder").hidden ? null : () => $("grid-name-find").focus(),
    }[key];
  },
  took(data, entry) {
    const back = entry.path === "/api/undo", { label } = entry.body;
    const news = !back ? keptWords(data, entry) : data.wall ? wallBack(data.wall) : `Taken back: what was said of ${data.item.item}.`;
    say(news);
    if (!back && !data.seqs.length) { forgetUndo(entry); keepOutbox(); }
    if (entry.wrong?.length) calledWrong.set(label, new Set([...(calledWrong.get(label) || []), ...entry.wrong]));
    if (wall.sent === entry.body.request) { Object.assign(wall, { items: [], sent: "" }); drawGrid(); }
    if (view === "grid") loadGrid({ label: wall.label || label, like: wall.like, find: wall.find }, news);
  },
  /* The wall as it was, with its marks. */
  refused(entry, error) {
    if (entry.path !== "/api/grid" || wall.sent !== entry.body.request) return;
    Object.assign(wall, { sent: "", back: true });
    $("grid-wall").inert = false;
    countGrid();
    $("grid-words").textContent = `${sentence(error.message)} The wall is as it was.`;
  },
};
