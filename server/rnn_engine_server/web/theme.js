// Set the colours before the first paint; a classic script, so that it runs before anything is shown.
{
  let theme = "auto";
  try {
    theme = JSON.parse(localStorage.getItem("rnn-engine.theme") ?? '"auto"');
  } catch {
    // the storage is closed or holds something else: follow the system
  }
  document.documentElement.dataset.theme = theme;
}
