const theme = () => { document.documentElement.dataset.theme = localStorage.getItem("theme") || "system"; };
theme();
addEventListener("storage", theme);
// The page is drawn in a frame that may open nothing: a link is followed by Airflow's own page, around it.
addEventListener("click", (event) => {
  const link = event.target.closest("a[target]");
  if (!link || parent === window) return;
  event.preventDefault();
  const twin = parent.document.createElement("a");
  twin.href = link.href;
  twin.rel = "noopener noreferrer";
  twin.target = link.target === "_top" && !event.ctrlKey && !event.metaKey ? "_self" : "_blank";
  twin.click();
});
const refresh = async () => {
  try {
    if (!document.getElementById("live") || document.hidden) return;
    const response = await fetch(location.href, { cache: "no-store" });
    if (response.redirected) return location.reload();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const focused = document.activeElement.href;
    for (const id of ["status", "live"]) {
      const [old, now] = [document, page].map((one) => one.getElementById(id));
      if (old.innerHTML !== now.innerHTML) old.replaceChildren(...now.childNodes);
    }
    [...document.querySelectorAll("a")].find((link) => link.href === focused)?.focus();
  } catch { /* Airflow cannot be reached now: what is shown says of when it is. */
  } finally { setTimeout(refresh, 10000); }
};
setTimeout(refresh, 10000);
