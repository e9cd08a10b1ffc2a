// Elements without templates: every text is a text node, so nothing that a server or a file says becomes markup.

export const byId = (id) => document.getElementById(id);

/** An element: `h("td", {class: "text"}, "4", other)`. `style` sets properties one by one, which the policy allows. */
export function h(tag, attributes = {}, ...content) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") for (const [property, one] of Object.entries(value)) made.style.setProperty(property, one);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...content.flat().filter((one) => one !== null && one !== undefined && one !== false));
  return made;
}

/** SVG that the server drew. It is parsed as XML, where scripts do not run; the policy forbids them too. */
export function drawn(svg) {
  const parsed = new DOMParser().parseFromString(svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"'), "image/svg+xml");
  return document.importNode(parsed.documentElement, true);
}

export const legend = (entries) =>
  h("ul", { class: "legend" }, entries.map(({ style, text }) => h("li", {}, h("span", { class: `key ${style}` }), " ", text)));

export function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  select.value = chosen;
}

export function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
