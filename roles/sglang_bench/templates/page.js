"use strict";
// Sorting: numbers as numbers, what is not there last, the order of equals kept.
function sorted(rows, column, direction) {
  const key = (row) => row.cells[column].dataset.sort;
  return rows.sort((one, other) => {
    const a = key(one), b = key(other);
    if (a === "" || b === "") return (a === "") - (b === "");
    const both = [Number(a), Number(b)];
    const order = both.some(Number.isNaN) && a !== "inf" && b !== "inf" ? a.localeCompare(b) : value(a) - value(b);
    return direction * (order || 0);
  });
}
function value(text) { return text === "inf" ? Number.MAX_VALUE : Number(text); }
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((each) => each.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = table.tBodies[0];
    body.append(...sorted([...body.rows], column, up ? 1 : -1));
  }));
}
for (const box of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(box.dataset.filter).querySelectorAll("tr")];
  const count = document.getElementById(box.dataset.filter + "-count");
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => (row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word))) === false);
    count.textContent = shown.length + " of " + rows.length;
  });
}
// On paper nothing can be opened; the long list alone stays closed.
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open]):not(.long)")];
  closed.forEach((part) => { part.open = true; });
});
addEventListener("afterprint", () => closed.forEach((part) => { part.open = false; }));
