// A config.json of the user's: read here, understood by the server, kept in the address as fields.

import { Refused, ask } from "./api.js";
import { byId } from "./dom.js";

const MOST_BYTES = 1 << 20;

/** Calls `opened(answer)` with what the server read, `refused(text)` with why it did not. */
export function acceptConfigs(opened, refused) {
  const drop = byId("drop"), input = byId("config");

  async function take(file) {
    if (!file) return;
    try {
      if (file.size > MOST_BYTES) throw new Refused(`${file.name} has ${file.size} bytes, expected a config.json of at most ${MOST_BYTES}`);
      let values;
      try {
        values = JSON.parse(await file.text());
      } catch {
        throw new Refused(`${file.name} is not JSON, expected a model's config.json`);
      }
      if (values === null || typeof values !== "object" || Array.isArray(values)) throw new Refused(`${file.name} holds no JSON object, expected a model's config.json`);
      const name = file.name.replace(/\.json$/i, "");
      const found = await ask("/model", { model: values });
      if (found.model.name === "model" || found.model.name === "config") found.model.name = name === "config" ? "config.json" : name;
      opened(found);
    } catch (error) {
      refused(error instanceof Refused ? error.message : `${file.name}: ${error.message}`);
    }
  }

  input.addEventListener("change", () => { take(input.files[0]); input.value = ""; });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") take(event.dataTransfer.files[0]);
    });
    // A file that misses the place must not take the page's.
    addEventListener(kind, (event) => event.preventDefault());
  }
}
