/* Review: what is labelled, the most doubtful first, to be relabelled in place. Answers go through the outbox of the page,
   so that none is lost; a row shows the new label at once. */
"use strict";

let reviewed = [];       // rows as the server sent them
let reviewRows = [];     // their elements; each part that came is a list of its own, which is laid out when it is near
let chosen = 0;          // the row that keys are for
let reviewChanges = 0;   // relabels here that can still be taken back
let reviewAsked = 0;     // the latest request; replies to earlier ones are dropped
let reviewList = "";     // the server's name of the list: further rows come from it, whatever is answered meanwhile

/* Days are those of this browser: from the first one's midnight to that after the last. */
function reviewFilter() {
  const filter = Object.fromEntries([...new FormData($("review-filter"))].filter(([, v]) => v));
  const midnight = (day, later) => { const [y, m, d] = day.split("-"); return new Date(y, m - 1, Number(d) + later).toISOString(); };
  if (filter.since) filter.since = midnight(filter.since, 0);
  if (filter.until) filter.until = midnight(filter.until, 1);
  return filter;
}

async function loadReview(start = 0) {
  const asked = ++reviewAsked;
  if (!start) $("review-words").textContent = "Looking for likely mistakes…";
  const data = await call(`/api/review?${new URLSearchParams({ ...reviewFilter(), start, list: start ? reviewList : "" })}`).catch((e) => ({ error: e }));
  if (asked !== reviewAsked) return;
  if (data.error) {
    if (data.error.status === 401) return askToken();
    $("review-words").textContent = data.error.status ? sentence(data.error.message) : "The server does not answer. Press Look again.";
    return;
  }
  if (start && start !== reviewed.length) return;
  reviewed = start ? [...reviewed, ...data.items] : data.items;
  if (!start) { chosen = 0; reviewChanges = 0; reviewList = data.list; }
  options($("review-filter").elements.label, ["", ...state.classes.map((c) => c.name)], "any");
  options($("review-filter").elements.who, ["", ...data.people], "anybody");
  $("review-words").textContent = reviewSummary(data);
  $("review-more").hidden = reviewed.length >= data.total;
  const part = made("ol");
  reviewRows = [...(start ? reviewRows : []), ...data.items.map((r, k) => reviewRow(r, start + k))];
  part.start = start + 1;
  part.append(...reviewRows.slice(start));
  if (start) {  // about as high as the first one, until it is laid out
    const first = $("review-list").firstElementChild;
    part.style.containIntrinsicBlockSize = `auto ${Math.round((first.offsetHeight * part.children.length) / first.children.length)}px`;
    $("review-list").append(part);
  } else $("review-list").replaceChildren(part);
  watchEnd();
  if (!start) choose(Math.min(chosen, reviewed.length - 1), false);
}

function reviewSummary(data) {
  const many = `${data.total.toLocaleString()} ${data.total === 1 ? "answer" : "answers"}.`;
  if (!data.total) return "Nothing fits. Choose other filters.";
  if (!data.first && data.items.every((r) => r.label === null)) return many;
  if (!data.first) return `${many} No doubts yet: they need a model and ten labels.`;
  const wrong = Math.round(data.expected);
  return `${many} Of the first ${data.first}, about ${wrong} ${wrong === 1 ? "is" : "are"} expected to be wrong.`;
}

function options(select, values, none) {
  const was = select.value;
  if ([...select.options].map((o) => o.value).join("\n") === values.join("\n") && select.options.length) return;
  select.replaceChildren(...values.map((v) => { const o = made("option", v || none); o.value = v; return o; }));
  select.value = values.includes(was) ? was : values[0];
}

/* The first frame of a film comes when its row does. */
const filmsSeen = new IntersectionObserver((entries) => {
  for (const e of entries.filter((e) => e.isIntersecting)) { e.target.preload = "metadata"; filmsSeen.unobserve(e.target); }
});

function reviewRow(r, n) {
  const li = made("li"), about = made("div", "", "about"), doubt = made("div", "", "doubt"), relabel = made("div", "", "relabel");
  li.dataset.item = r.item;
  const title = made("button", r.text || r.item, "title");
  title.dir = "auto";
  title.title = "Open it, to look closely (+)";
  title.addEventListener("click", () => openRow(n));
  if (r.picture) {
    const thumb = made("button", "", "thumb"), img = made("img");
    Object.assign(img, { src: r.picture, alt: "", loading: "lazy" });
    thumb.tabIndex = -1;  // the title beside it does the same
    thumb.setAttribute("aria-hidden", "true");
    thumb.append(img);
    thumb.addEventListener("click", () => openRow(n));
    li.append(thumb);
  } else about.classList.add("text-cell");
  const several = (r.voices || []).length > 1;
  about.append(title, [several ? `counts: ${stands(r)}${r.decided ? `, decided by ${r.who}` : r.sure === null ? "" : `, ${percent(r.sure)} sure by who said it`}` : r.who, r.at && here(r.at).slice(0, 10), r.measured ? "measured" : ""].filter(Boolean).join(" · "));
  if (r.clip) {
    const player = Object.assign(made(r.media), { controls: true, preload: "none", src: r.clip, ariaLabel: `Item ${r.item}` });
    about.append(player);
    if (r.media === "video") filmsSeen.observe(player);
  }
  if (several) about.append(voices(r, n));
  if (r.doubt) {
    doubt.append(made("b", `${percent(r.doubt.wrong)} wrong`), made("br"), `others say ${words(r.doubt.likely)}, ${percent(r.doubt.probability)}`);
    doubt.classList.toggle("high", r.doubt.wrong >= 0.5);
  }
  li.append(about, doubt, relabel);
  li.addEventListener("pointerdown", () => choose(n, false));
  if (r.label === null && !r.open) {
    const ask = made("button", "Ask again", "act");
    ask.title = "It is asked again: what was said of it is taken back";
    ask.addEventListener("click", () => askAgain(n));
    relabel.append(ask);
  }
  if (taskKind() !== "one") {
    const again = made("button", stands(r), "act");
    again.title = "Answer it again";
    again.addEventListener("click", () => openRow(n));
    relabel.append(again);
    return li;
  }
  const select = made("select");
  select.setAttribute("aria-label", `Label of ${r.item}`);
  const none = r.label === null ? [""] : [];
  options(select, [...none, ...(r.label === null ? [] : [r.label])], stands(r));
  // The other classes when they are wanted: 77 of them in each of 1,000 rows would make the list stick.
  const fill = () => options(select, [...none, ...state.classes.map((c) => c.name)], stands(r));
  for (const event of ["focus", "pointerenter", "touchstart"]) select.addEventListener(event, fill, { once: true, passive: true });
  select.addEventListener("change", () => relabelRow(n, select.value));
  relabel.append(select);
  return li;
}

/* What counts for a row, in words. */
const stands = (r) => (r.open ? "asked again" : r.label === null ? SAID[r.kind] || "open" : words(r.label));

/* What each person said: a button a class, which decides for it. */
function voices(r, n) {
  const said = new Map(), line = made("div", "", "voices");
  for (const [who, word] of r.voices) said.set(word, [...(said.get(word) || []), who]);
  for (const [word, people] of said) {
    const said = `${SAID[word] || words(word)}: ${people.join(", ")}`;
    if (SAID[word]) { line.append(made("span", said)); continue; }
    const button = made("button", said, "act");
    button.title = `Decide for ${word}`;
    button.addEventListener("click", () => relabelRow(n, word));
    line.append(button);
  }
  return line;
}

const percent = (p) => (p > 0.995 ? "over 99 %" : p < 0.005 ? "under 1 %" : `${Math.round(100 * p)} %`);

function choose(n, move = true) {
  const old = reviewRows[chosen];
  old?.classList.remove("chosen");
  old?.removeAttribute("aria-current");
  chosen = Math.max(0, Math.min(n, reviewed.length - 1));
  const li = reviewRows[chosen];
  li?.classList.add("chosen");
  li?.setAttribute("aria-current", "true");
  if (li && move) { li.scrollIntoView({ block: "nearest" }); $("live").textContent = li.querySelector(".about").textContent + ", " + stands(reviewed[chosen]); }
}

/* On the stage one can look closely; an answer there, or Escape, leads back to the row. */
async function openRow(n) {
  const r = reviewed[n];
  if (!r) return;
  choose(n, false);
  await recall(r.number, { view: "review", answered: (entry) => showAnswer(r, entry) });
  if (!revising) return banner("The server does not answer.", 4000);
  if (view === "review") { openView("label"); $("stage").scrollIntoView({ block: "nearest" }); } else { revising = visit = null; show("answered"); }
}

/* A row shows an answer at once. The entry keeps what it showed before: the server may refuse it. */
function showAnswer(r, entry) {
  const { kind, label = null } = entry.body, undecided = label !== null && (r.voices || []).length > 1 && !r.decided;
  Object.assign(entry, { from: "review", was: Object.fromEntries(["kind", "label", "decided", "who", "open"].map((k) => [k, r[k]])) });
  Object.assign(r, { kind: kind || r.kind, label, open: entry.path === "/api/reopen" }, undecided ? { decided: true, who: me().who } : {});
  if (kind) reviewChanges += 1;
  const n = reviewed.indexOf(r);
  if (n >= 0) redrawRow(n, true);
}

function askAgain(n) {
  const r = reviewed[n], entry = { path: "/api/reopen", body: { ...me(), item: r.item } };
  showAnswer(r, entry);
  say(`${r.item} is asked again.`);
  post(entry);
}

function relabelRow(n, label) {
  const r = reviewed[n];
  const undecided = r && (r.voices || []).length > 1 && !r.decided;
  if (!r || !label || (r.label === label && !undecided)) return;
  const entry = { path: "/api/answer", body: { ...me(), item: r.item, kind: "relabel", label, request: random() } };
  showAnswer(r, entry);
  say(`${r.item}: ${words(label)}.`);
  post(entry);
}

function redrawRow(n, changed) {
  const old = reviewRows[n], li = reviewRow(reviewed[n], n);
  reviewRows[n] = li;
  li.classList.toggle("changed-now", changed);
  li.classList.toggle("chosen", n === chosen);
  const inside = old.contains(document.activeElement);
  old.replaceWith(li);
  if (inside) atItem();
}

function undoReview() {
  if (!reviewChanges) return banner("Nothing was relabelled here since the list was made.", 3000);
  reviewChanges -= 1;
  post({ path: "/api/undo", from: "review", body: { ...me(), request: random() } });
}

$("review-filter").addEventListener("change", () => loadReview());
$("review-filter").addEventListener("submit", (event) => event.preventDefault());
$("review-again").addEventListener("click", () => loadReview());
$("review-undo").addEventListener("click", () => undoReview());
$("review-more").addEventListener("click", () => loadReview(reviewed.length));
/* More rows come before the end is on the screen. It is watched anew after each part: whoever is at the end again before
   the next frame would otherwise wait for ever. */
const reviewEnd = new IntersectionObserver((entries) => { if (entries.at(-1).isIntersecting) loadReview(reviewed.length); }, { rootMargin: "600px", scrollMargin: "600px" });
function watchEnd() { reviewEnd.disconnect(); reviewEnd.observe($("review-more")); }

views.review = {
  open(back) {
    if (!back) return loadReview();
    choose(chosen, false);
    reviewRows[chosen]?.scrollIntoView({ block: "center" });
  },
  actionOf(key, withControl) {
    if (withControl) return key === "z" ? undoReview : null;
    const name = taskKind() === "one" && state?.classes.find((c) => c.keys.includes(key))?.name;
    if (name) return () => { relabelRow(chosen, name); choose(chosen + 1); };
    const likely = reviewed[chosen]?.doubt?.likely;
    return {
      arrowdown: () => choose(chosen + 1), arrowup: () => choose(chosen - 1), [keyOf("undo")]: undoReview, [keyOf("zoomIn")]: () => openRow(chosen),
      [keyOf("accept")]: taskKind() === "one" ? likely && (() => { relabelRow(chosen, likely); choose(chosen + 1); }) : () => openRow(chosen),
    }[key];
  },
  took(data, entry) {
    const item = entry.path === "/api/undo" ? data.item.item : entry.body.item, n = reviewed.findIndex((r) => r.item === item);
    if (n < 0 || entry.path !== "/api/undo") return;
    Object.assign(reviewed[n], { label: data.item.answer?.label ?? null, kind: data.item.answer?.kind, decided: false, open: false });
    redrawRow(n, false);
    choose(n);
    say("Taken back.");
  },
  refused(entry) {
    if (!entry.was) return;
    if (entry.body.kind) reviewChanges = Math.max(0, reviewChanges - 1);
    const later = outbox.find((e) => e.was && e.body.item === entry.body.item);
    const n = reviewed.findIndex((r) => r.item === entry.body.item);
    if (later) later.was = entry.was;  // a later answer is shown; it may be refused too
    else if (n >= 0 && reviewed[n].label === (entry.body.label ?? null)) { Object.assign(reviewed[n], entry.was); redrawRow(n, false); }
  },
};
