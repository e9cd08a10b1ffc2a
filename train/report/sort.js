// Sorts a table by the column whose heading is pressed; pressed again, the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const ascending = heading.ariaSort !== "ascending";
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [key(a), key(b)];
        // What has no figure comes last, whichever way.
        if (x === "" || y === "") return (x === "") - (y === "");
        const difference = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return ascending ? difference : -difference;
      };
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    });
  });
}
