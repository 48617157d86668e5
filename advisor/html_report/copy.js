// Makes the buttons above code: one copies it, the other saves it as a file. words: their texts.
function codeButtons(root, words) {
  for (const button of root.querySelectorAll("button[data-copy], button[data-save]")) {
    const code = button.closest(".copy, .command").querySelector("code"), file = button.dataset.save;
    const title = file ? words.save : words.copy;
    button.textContent = title;
    button.onclick = () => {
      if (!file) return copyText(code.textContent, button, { ...words, title });
      const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([code.textContent])), download: file });
      link.click();
      URL.revokeObjectURL(link.href);
    };
  }
}
// Copies a text, also where the page has no clipboard (an address without https), and says on the button whether it is copied.
async function copyText(text, button, { title, copied, failed }) {
  let isCopied = Boolean(text);
  try {
    if (text) await navigator.clipboard.writeText(text);
  } catch {
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
    area.select();
    isCopied = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = isCopied ? copied : failed;
  setTimeout(() => (button.textContent = title), 1500);
}
