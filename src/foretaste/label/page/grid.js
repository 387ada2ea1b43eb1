/* A wall of items that the model says are of one class, that are like an item, or that have some words. Press the wrong
   ones, or point at one and press the key of its class; one key accepts the rest. Each is an answer of its own, and all
   are taken back together. The wall grows when its end is on the screen; what came so counts once it has been seen. */
"use strict";

let wall = { items: [], label: "", like: "" };
let wrongOnes = new Set();
let namedOnes = new Map();  // tile → the class that was named for it
let tile = 0;
let pointedAt = -1;         // the tile that the mouse has moved to since the wall was drawn
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

async function loadGrid(wanted = {}) {
  const label = wanted.label ?? ($("grid-class").value || state.classes[0].name), like = wanted.like || "", find = like ? "" : (wanted.find ?? "");
  $("grid-find").value = find;
  options($("grid-class"), state.classes.map((c) => c.name), "");
  $("grid-class").value = label;
  $("grid-words").textContent = "Looking…";
  const asked = ++gridAsked, data = await askGrid({ label, like, find });
  if (asked !== gridAsked) return;
  if (data.error) {
    if (data.error.status === 401) return askToken();
    $("grid-words").textContent = data.error.status ? sentence(data.error.message) : "The server does not answer. Choose the class again.";
    return;
  }
  wall = { items: data.items, label, like, find, left: data.left, looked: data.looked };
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
  if (!wall.looked) return wallWords(ready);
  const [done, of] = wall.looked.map((n) => n.toLocaleString());
  return `${wall.items.length ? `${wallWords(ready)} ` : ""}The new network has looked at ${done} of ${of} items so far.`;
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
  if (growing || items.length >= Math.min(left, MOST_TILES)) return;
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
  $("grid-wall").replaceChildren(...wall.items.map(gridTile));
  markGrid();
}

function gridTile(r, n) {
  const button = made("button");
  if (r.picture) { const img = made("img"); img.loading = "lazy"; img.src = r.picture; img.alt = ""; button.append(img); } else button.append(Object.assign(made("span", r.text, "words"), { dir: "auto" }));
  button.append(made("small", !r.likely ? r.item : `${r.likely} ${percent(r.p)}${r.follow ? ` · ${r.follow} follow${r.follow === 1 ? "s" : ""}` : ""}`));
  button.addEventListener("click", () => { tile = n; toggleWrong(n); });
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
  const r = wall.items[tile], on = r && !wall.find && (wrongOnes.has(tile) || namedOnes.has(tile));
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
  $("grid-accept").disabled = !rest && !namedOnes.size;
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

function acceptGrid() {
  const items = wall.items.filter((_, n) => accepted(n)).map((r) => r.item);
  const others = Object.fromEntries([...namedOnes].map(([n, name]) => [wall.items[n].item, name]));
  if (!items.length && !namedOnes.size) return;
  if (!wall.find) calledWrong.set(wall.label, new Set([...(calledWrong.get(wall.label) || []), ...[...wrongOnes].map((n) => wall.items[n].number)]));
  post({ path: "/api/grid", from: "grid", body: { ...me(), items, label: wall.label, others, request: random() } });
  wall.items = [];
  drawGrid();
  $("grid-words").textContent = `${items.length} accepted as ${wall.label}${namedOnes.size ? `, ${namedOnes.size} as other classes` : ""}.`;
  namedOnes = new Map();
}

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
  open: () => loadGrid(),
  actionOf(key, withControl) {
    if (withControl) return key === "z" ? undoGrid : null;
    const found = state?.classes.find((c) => c.keys.includes(key));
    const at = pointedAt >= 0 ? pointedAt : wrongOnes.has(tile) ? tile : -1;
    if (found && wall.items[at] && !wall.find) return () => nameTile(at, found.name);
    if (found) return () => (wall.find ? ($("grid-class").value = wall.label = found.name, markGrid()) : loadGrid({ label: found.name }));
    return {
      arrowright: () => moveTile(1), arrowleft: () => moveTile(-1), arrowdown: () => moveTile(gridColumns()), arrowup: () => moveTile(-gridColumns()),
      [keyOf("skip")]: () => { toggleWrong(tile); focusTile(); }, [keyOf("accept")]: acceptGrid, [keyOf("undo")]: undoGrid,
      [keyOf("findClass")]: $("grid-name").hidden || $("grid-name-finder").hidden ? null : () => $("grid-name-find").focus(),
    }[key];
  },
  took(data, entry) {
    say(entry.path === "/api/undo" ? "Taken back." : `${entry.body.items.length + Object.keys(entry.body.others || {}).length} accepted.`);
    if (view === "grid") loadGrid({ label: wall.label, like: wall.like, find: wall.find });
  },
};
