// What bench_explore.py evaluates in the page.
({
  // From the start of navigation to the first headline figures, and to the first pictures.
  first: async () => {
    const there = (id) => new Promise((done) => {
      const place = document.getElementById(id);
      if (place.childElementCount) return done(performance.now());
      new MutationObserver(() => place.childElementCount && done(performance.now())).observe(place, {childList: true});
    });
    return Promise.all([there("tiles"), there("timeline")]);
  },

  // A slider through all its valid stops and back: from the event to new pictures on the screen.
  moves: async (field) => {
    const input = document.getElementById(`slider-${field}`), place = document.getElementById("timeline"), times = [];
    const stops = input.closest(".slider").querySelectorAll(".stops span");
    const valid = [...stops].flatMap((one, at) => one.className === "none" ? [] : [at]);
    for (const at of [...valid, ...valid.reverse()]) {
      if (Number(input.value) === at) continue;
      const drawn = new Promise((done) => new MutationObserver((_, watch) => {
        watch.disconnect();
        requestAnimationFrame(() => done(performance.now()));
      }).observe(place, {childList: true}));
      const begin = performance.now();
      input.value = at;
      input.dispatchEvent(new Event("input", {bubbles: true}));
      times.push(await drawn - begin);
      await new Promise((done) => setTimeout(done, 150));
    }
    return times;
  },
})
