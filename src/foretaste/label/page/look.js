/* Look closely: zoom, pan and brightness of a picture, its original in a new tab; long texts and cells fold and can be
   searched. Zoom ends with the item; brightness stays. */
"use strict";

const MOST_ZOOM = 16;
const LARGE_SIDE = 1280;  // pixels of a picture that comes with an item; larger ones are loaded when they are zoomed
let lookedAt = null;      // the item on the screen
let sharpened = null;     // the item whose full size was asked for
let zoom = { scale: 1, x: 0, y: 0 };
let brightness = 1;
const fingers = new Map();  // pointer → where it is

function drawZoom() {
  const box = $("figure").getBoundingClientRect(), far = (zoom.scale - 1) / 2;
  zoom.x = Math.max(-far * box.width, Math.min(far * box.width, zoom.x));
  zoom.y = Math.max(-far * box.height, Math.min(far * box.height, zoom.y));
  $("picture").style.transform = zoom.scale === 1 ? "" : `translate(${zoom.x}px, ${zoom.y}px) scale(${zoom.scale})`;
  $("picture").style.filter = brightness === 1 ? "" : `brightness(${brightness})`;
  $("figure").classList.toggle("zoomed", zoom.scale > 1);
  $("zoom-much").textContent = `${Math.round(100 * zoom.scale)} %`;
  $("brightness").value = brightness;
  if (zoom.scale > 1) sharpen();
}

/* The full size takes the place of the smaller one once it is decoded. It fills the same box, so nothing jumps. */
function sharpen() {
  const item = lookedAt, picture = $("picture"), full = new Image();
  if (!item || picture.hidden || sharpened === item || Math.max(picture.naturalWidth, picture.naturalHeight) < LARGE_SIDE) return;
  sharpened = item;
  full.src = item.picture.replace(/large$/, "full");
  full.decode().then(() => { if (lookedAt === item && !picture.hidden) picture.src = full.src; }, () => { if (lookedAt === item) sharpened = null; });
}

/* Zooms by a factor; the point at (x, y) of the window stays where it is. */
function zoomBy(factor, x, y) {
  const box = $("figure").getBoundingClientRect(), scale = Math.max(1, Math.min(MOST_ZOOM, zoom.scale * factor));
  const dx = (x ?? box.x + box.width / 2) - box.x - box.width / 2, dy = (y ?? box.y + box.height / 2) - box.y - box.height / 2;
  const moved = scale / zoom.scale;
  zoom = { scale, x: dx - (dx - zoom.x) * moved, y: dy - (dy - zoom.y) * moved };
  drawZoom();
}

function zoomOff() { zoom = { scale: 1, x: 0, y: 0 }; fingers.clear(); drawZoom(); }

const PAN = { arrowleft: [1, 0], arrowright: [-1, 0], arrowup: [0, 1], arrowdown: [0, -1] };

/* What an arrow does while a picture is zoomed: it shows what is farther there. */
function panKey(key) {
  if (zoom.scale === 1 || !PAN[key]) return null;
  return () => { const box = $("figure").getBoundingClientRect(); zoom.x += PAN[key][0] * box.width / 6; zoom.y += PAN[key][1] * box.height / 6; drawZoom(); };
}

function light(by) {
  brightness = Math.round(10 * Math.max(0.3, Math.min(3, brightness + by))) / 10;
  drawZoom();
}

/* Called when another item comes to the screen. */
function lookAt(item) {
  lookedAt = item;
  sharpened = null;
  zoomOff();
  $("look").hidden = !item?.picture;
  if (item?.picture) $("original").href = item.picture.replace(/large$/, "original");
  showWords(item);
  classesFound.clear();
  if (view === "label") announceItem();
}

/* For a screen reader: the item, or how it begins. */
function announceItem() {
  const item = lookedAt, said = item?.text ?? (item?.cells || []).map(([name, value]) => `${name} ${value}`).join(", ");
  $("live-item").textContent = !item ? "" : said ? shortened(said, 150) : `Item ${item.item}.`;
}
views.label.open = announceItem;

/* Words: a text, or each cell of a row, is a passage. Of a very long one only the beginning comes with the item; the
   rest is loaded when it is unfolded or searched. */

const FOLDED = { text: 1500, cell: 400 };  // characters that are shown at first
const MARKED = 200;      // hits before and after the chosen one that are marked
let passages = [];       // { node, text, length: of all of it, cut: whether some of it is not here, most, open }
let wholeAsked = null;   // the item whose rest is on its way
let hits = [], hit = 0;  // [passage, from, length]; the chosen one
let hitIn = new Set();   // passages that have one

/* Lower case of the same length, so that places stay: İ is the only letter that would become two. */
const folded = (text) => text.replaceAll("İ", "i").toLowerCase().replaceAll("ς", "σ");

/* Cut before a word where there is one, and never within a character. */
const shortened = (text, most) => (text.length <= most * 1.3 ? text : text.slice(0, most).replace(/\s\S{0,40}$|[\ud800-\udbff]$/, "") + " …");

function showWords(item) {
  const passage = (node, text, length, most) => ({ node, text, length: length ?? text.length, cut: length !== undefined, most, open: false });
  passages = item?.text !== undefined ? [passage($("text"), item.text, item.length, FOLDED.text)]
    : (item?.cells || []).map(([, value, length]) => passage(Object.assign(made("dd", "", value.length > 90 ? "long" : ""), { dir: "auto" }), value, length, FOLDED.cell));
  if (item?.cells) $("cells").firstElementChild.replaceChildren(...item.cells.flatMap(([name], k) => [made("dt", name), passages[k].node]));
  $("find").hidden = passages.reduce((n, p) => n + p.length, 0) < 200;
  $("find-words").value = "";
  search();
  $("text").scrollTop = $("cells").scrollTop = 0;
}

/* Loads what is not here yet. Whether all of it is here now. */
async function loadWhole() {
  const item = lookedAt;
  if (!passages.some((p) => p.cut)) return true;
  if (wholeAsked === item) return false;  // who asked first goes on with it
  wholeAsked = item;
  const data = await call(`/api/whole/${item.number}`).catch(() => null);
  wholeAsked = null;
  if (lookedAt !== item) return false;
  if (!data) { $("find-count").textContent = "The rest of it cannot be loaded."; return false; }
  passages.forEach((p, k) => Object.assign(p, { text: data.text ?? data.cells[k][1], cut: false, low: null }));
  return true;
}

/* All places of the words that are looked for. */
async function search() {
  const wanted = folded($("find-words").value.trim());
  hits = [];
  hit = 0;
  $("find-count").textContent = "";
  if (wanted && passages.some((p) => p.cut)) {
    $("find-count").textContent = "Loading all of it…";
    if (await loadWhole()) search();
    return;
  }
  if (wanted) passages.forEach((p, k) => {
    p.low ??= folded(p.text);
    for (let at = p.low.indexOf(wanted); at >= 0; at = p.low.indexOf(wanted, at + wanted.length)) hits.push([k, at, wanted.length]);
  });
  hitIn = new Set(hits.map(([k]) => k));
  if (wanted && !hits.length) $("find-count").textContent = "0 found";
  $("find-next").disabled = $("find-back").disabled = !hits.length;
  drawWords();
}

function drawWords() {
  const near = hits.slice(Math.max(0, hit - MARKED), hit + MARKED + 1);
  passages.forEach((p, k) => drawPassage(p, near.filter(([passage]) => passage === k), hitIn.has(k)));
  if (!hits.length) return;
  $("find-count").textContent = `${(hit + 1).toLocaleString()} of ${hits.length.toLocaleString()}`;
  document.querySelector("mark.here")?.scrollIntoView({ block: "nearest" });
}

function drawPassage(p, near, found) {
  const open = p.open || found || p.length <= p.most * 1.3, nodes = [];
  let at = 0;
  for (const place of near) {
    nodes.push(p.text.slice(at, place[1]), made("mark", p.text.slice(place[1], place[1] + place[2]), place === hits[hit] ? "here" : ""));
    at = place[1] + place[2];
  }
  p.node.replaceChildren(...nodes, open ? p.text.slice(at) : shortened(p.text, p.most));
  if (open && !p.cut) return;
  const more = made("button", `Show all ${p.length.toLocaleString()} characters`, "act unfold");
  more.addEventListener("click", async () => { p.open = true; more.disabled = true; await loadWhole(); search(); });
  p.node.append(made("br"), more);
}

function nextHit(by) {
  if (!hits.length) return;
  hit = (hit + by + hits.length) % hits.length;
  drawWords();
}

$("find-words").addEventListener("input", search);
$("find-words").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return;
  event.preventDefault();
  event.stopPropagation();
  nextHit(event.shiftKey ? -1 : 1);
});
$("find-next").addEventListener("click", () => nextHit(1));
$("find-back").addEventListener("click", () => nextHit(-1));
$("figure").addEventListener("wheel", (event) => {
  if ($("picture").hidden) return;
  event.preventDefault();
  zoomBy(Math.exp(-event.deltaY / 400), event.clientX, event.clientY);
}, { passive: false });
$("figure").addEventListener("dblclick", (event) => { if (!$("picture").hidden) zoom.scale > 1 ? zoomOff() : zoomBy(2.5, event.clientX, event.clientY); });
$("figure").addEventListener("pointerdown", (event) => {
  if ($("picture").hidden) return;
  fingers.set(event.pointerId, [event.clientX, event.clientY]);
  if (zoom.scale > 1 || fingers.size > 1) $("figure").setPointerCapture(event.pointerId);
});
$("figure").addEventListener("pointermove", (event) => {
  const was = fingers.get(event.pointerId);
  if (!was) return;
  const now = [event.clientX, event.clientY], other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
  if (other) {
    const far = (p) => Math.hypot(p[0] - other[0], p[1] - other[1]);
    zoomBy(far(now) / Math.max(1, far(was)), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  } else if (zoom.scale > 1) { zoom.x += now[0] - was[0]; zoom.y += now[1] - was[1]; drawZoom(); }
  fingers.set(event.pointerId, now);
});
for (const end of ["pointerup", "pointercancel"]) $("figure").addEventListener(end, (event) => fingers.delete(event.pointerId));
$("picture").addEventListener("load", () => { if (zoom.scale > 1) sharpen(); });
$("zoom-in").addEventListener("click", () => zoomBy(1.5));
$("zoom-out").addEventListener("click", () => zoomBy(1 / 1.5));
$("zoom-off").addEventListener("click", zoomOff);
$("brightness").addEventListener("input", () => { brightness = Number($("brightness").value); drawZoom(); });
$("brightness").addEventListener("change", atItem);
