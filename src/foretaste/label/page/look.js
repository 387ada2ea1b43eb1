/* Look closely: zoom, pan and brightness of a picture, its original in a new tab; long texts fold and can be searched.
   Zoom ends with the item; brightness stays. And the keys of the page: shown by F1, set by whoever uses them, kept. */
"use strict";

const MOST_ZOOM = 16, FOLDED = 1500;  // times; characters of a text that are shown at first
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

function light(by) {
  brightness = Math.round(10 * Math.max(0.3, Math.min(3, brightness + by))) / 10;
  drawZoom();
}

/* Called when another item comes to the screen. */
function lookAt(item) {
  zoomOff();
  $("look").hidden = !item?.picture;
  $("find").hidden = item?.text === undefined || item.text.length < 200;
  if (item?.picture) $("original").href = item.picture.replace(/large$/, "full");
  if (item?.text !== undefined) { $("find-words").value = ""; showText(item.text); }
}

let wholeText = false, textShown = "";
function showText(text) {
  textShown = text;
  wholeText = text.length <= FOLDED * 1.3;
  drawText();
  $("text").scrollTop = 0;
}

function drawText() {
  const wanted = $("find-words").value.trim().toLowerCase(), low = textShown.toLowerCase();
  const text = wholeText || wanted ? textShown : textShown.slice(0, FOLDED).replace(/\s\S*$/, "") + " …";
  const nodes = [];
  let at = 0, found = 0;
  if (wanted && low.length === textShown.length) {
    for (let n = low.indexOf(wanted); n >= 0; n = low.indexOf(wanted, at)) {
      nodes.push(text.slice(at, n), made("mark", text.slice(n, n + wanted.length)));
      at = n + wanted.length;
      found += 1;
    }
  }
  $("text").replaceChildren(...nodes, text.slice(at));
  if (!wholeText && !wanted) {
    const more = made("button", `Show all ${textShown.length.toLocaleString()} characters`, "act");
    more.id = "unfold";
    more.addEventListener("click", () => { wholeText = true; drawText(); });
    $("text").append(made("br"), more);
  }
  $("find-count").textContent = wanted ? `${found} found` : "";
  $("text").querySelector("mark")?.scrollIntoView({ block: "nearest" });
}

$("find-words").addEventListener("input", drawText);
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
$("zoom-in").addEventListener("click", () => zoomBy(1.5));
$("zoom-out").addEventListener("click", () => zoomBy(1 / 1.5));
$("zoom-off").addEventListener("click", zoomOff);
$("brightness").addEventListener("input", () => { brightness = Number($("brightness").value); drawZoom(); });
$("brightness").addEventListener("change", atItem);

/* Keys. Those of classes are set under Classes. */

const KEY_WORDS = {
  undo: "Undo", skip: "Skip", unsure: "Not sure", ignore: "Set aside", accept: "The likeliest class, or the answer as it stands", zoomIn: "Zoom in",
  zoomOut: "Zoom out", zoomOff: "Whole picture", darker: "Darker", brighter: "Brighter", find: "Search in the text",
  play: "Play or pause a clip",
};
const keyShown = (key) => ({ " ": "space", backspace: "⌫", delete: "del", escape: "esc", arrowup: "↑", arrowdown: "↓" }[key] || key);

function drawKeys() {
  for (const [action, id] of Object.entries({ undo: "undo", skip: "skip", unsure: "unsure", ignore: "ignore" })) {
    $(id).querySelector("kbd").textContent = keyShown(keyOf(action));
    $(id).setAttribute("aria-keyshortcuts", keyOf(action) === " " ? "Space" : keyOf(action));
  }
  $("accept").querySelector("kbd").textContent = keyShown(keyOf("accept"));
  const rows = Object.entries(KEY_WORDS).map(([action, words]) => {
    const button = made("button", keyShown(keyOf(action)), "act");
    button.dataset.action = action;
    button.type = "button";
    button.setAttribute("aria-label", `${words}: ${keyShown(keyOf(action))}. Press to set another key`);
    button.addEventListener("click", () => { settingKey = action; button.textContent = "press a key"; $("keys-words").textContent = `Press the key for “${words}”, or Escape.`; });
    const dd = made("dd");
    dd.append(button);
    return [made("dt", words), dd];
  });
  const classes = (state?.classes || []).map((c) => [made("dt", c.name), made("dd", c.keys.join(" ") || "none")]);
  const fixed = [["Keys", "F1"], ["Review", "F2"], ["Grid", "F4"], ["Classes", "F8"], ["Overview", "F9"]].map(([what, key]) => [made("dt", what), made("dd", key)]);
  $("keys-list").replaceChildren(...[...rows, ...fixed, ...classes].flat());
}

let settingKey = null;
$("keys").addEventListener("keydown", (event) => {
  if (!settingKey || ["Shift", "Control", "Alt", "Meta"].includes(event.key)) return;
  event.preventDefault();
  event.stopPropagation();
  const action = settingKey, key = event.key.toLowerCase();
  settingKey = null;
  const taken = key === "escape" ? null : /^f\d+$/.test(key) || key === "tab" ? "the page" : state.classes.find((c) => c.keys.includes(key))?.name ?? KEY_WORDS[Object.keys(KEYS).find((a) => a !== action && keyOf(a) === key)];
  $("keys-words").textContent = key === "escape" ? "Nothing was changed." : taken ? `${keyShown(key)} is the key of ${taken}; choose another.` : `“${KEY_WORDS[action]}” is ${keyShown(key)} now, in this browser.`;
  if (!taken && key !== "escape") { ownKeys[action] = key; localStorage.setItem("foretaste-keys", JSON.stringify(ownKeys)); }
  drawKeys();
  $("keys").querySelector(`[data-action=${action}]`).focus();
});
$("keys").addEventListener("close", () => { settingKey = null; atItem(); });
$("keys-reset").addEventListener("click", () => { for (const action of Object.keys(ownKeys)) delete ownKeys[action]; localStorage.removeItem("foretaste-keys"); $("keys-words").textContent = "All keys are as at first."; drawKeys(); });
$("keys-close").addEventListener("click", () => $("keys").close());
$("keys-open").addEventListener("click", openKeys);
function openKeys() {
  $("keys-words").textContent = "Press a key's button to set another.";
  drawKeys();
  if (!$("keys").open) $("keys").showModal();
}
drawKeys();
